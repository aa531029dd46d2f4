"""Choice of the clients that take part in a round, among those that have joined and are not left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.quarantine import Quarantine
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.federation.wire.announcement import Announcement
from fedml_dapper.methods import ServerState
from fedml_dapper.randomness.seeding import Stream, numpy_generator

LOGGER = logging.getLogger(__name__)


class Attendance:
    """Chooses clients, and keeps ``state.profiles`` as the roster has them."""

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._method = experiment.method
        self._roster = experiment.roster
        self._seed = experiment.settings.common_args.random_seed
        self._wanted = experiment.settings.train_args.client_num_per_round
        self.quarantine = Quarantine(experiment.settings.dapper_args.defence)
        """Clients that are left out, for uploads that were refused or by an operator."""
        self._state = state
        self._joined: set[int] = set()
        """Clients that joined in the open round, whose level is that of before until it closes."""
        self.quarantined: tuple[int, ...] = ()
        """Clients that were chosen for the last round, and left out of it."""

    def choose(self, features: Iterable[RoundFeature]) -> list[int]:
        """Choose the clients of the coming round, ascending, and set each one's level for it.

        Clients in quarantine are sampled like the others and then left out: so who else is sampled follows from the
        seed alone.
        """
        round_ = self._state.round + 1
        if self._roster.varies:  # before the choice: a method may leave levels out
            self._state.profiles = self._roster.profiles(round_)
        chosen = self._choose(features)
        self.quarantined = tuple(client_id for client_id in chosen if self.quarantine.holds(client_id, round_))
        return [client_id for client_id in chosen if client_id not in self.quarantined]

    def _choose(self, features: Iterable[RoundFeature]) -> list[int]:
        profiles = self._state.profiles
        wanted = self._wanted
        # Sorted, so that the sample follows from the seed and not from the order of a set.
        ids = [one for one in sorted(self._roster.available) if self._method.takes_part(profiles[one].level)]
        for feature in features:
            ids = list(feature.available(ids))
            wanted = feature.wanted(wanted)
        wanted = max(0, wanted)  # more clients may be at work already than are wanted
        if wanted >= len(ids):
            return ids
        stream = numpy_generator(self._seed, Stream.SAMPLING, self._state.round + 1)
        return sorted(stream.choice(ids, wanted, replace=False).tolist())

    def may_train(self, client_id: int) -> bool:
        """Return whether the client is known, and its level is none that its device or the method leaves out.

        Where a rule changes levels from round to round, any may be one that trains in the coming round.
        """
        if not self._roster.is_available(client_id):
            return False
        return self._roster.varies or self._method.takes_part(self._state.profiles[client_id].level)

    def join(self, client_id: int, announcement: Announcement) -> bool:
        """Note what data a silo holds, when it joins or comes back.

        It takes part from the next round on, and has its level from then on. Its upload in the open round has to fit
        what it says of its data now.

        Returns:
            Whether the announcement differs from the silo's last one.

        Raises:
            ProtocolError: The silo's device can run no level.
        """
        is_news = self._roster.join(announcement.device(client_id), announcement.profile)
        self._renew(client_id)
        return is_news

    def round_closed(self, records: Sequence[ClientRecord]) -> None:
        """Give silos that joined their level, and a smaller one to clients that took longer than the fleet plans."""
        relieved = [one.client for one in records if self._roster.relieve(one.client, one.level, one.seconds)]
        for client_id in sorted(self._joined.union(relieved)):
            self._renew(client_id)
        self._joined.clear()

    def _renew(self, client_id: int) -> None:
        known = list(self._state.profiles)
        before = known[client_id]
        renewed = self._roster.profile_of(client_id, self._state.round + 1)
        if self._state.clients:  # a method may deal channels out by all levels, and others are at work with theirs
            renewed = replace(renewed, level=before.level, ratio=before.ratio)
            self._joined.add(client_id)
        known[client_id] = renewed
        self._state.profiles = tuple(known)

    def strike(self, client_id: int) -> None:
        """Count a refused upload of the client in the open round, and put it in quarantine where these are too many."""
        if self.quarantine.strike(client_id, self._state.round + 1):
            last = self.quarantine.standing.out_until[client_id]
            LOGGER.warning("client %d is in quarantine up to and including round %d", client_id, last)

    def lift(self, client_id: int) -> bool:
        """Let a client that is left out take part from the next round on; return whether it was left out."""
        return self.quarantine.lift(client_id, self._state.round + 1)

    @property
    def left_out(self) -> Mapping[int, int]:
        """Last round that each client in quarantine, or evicted, is left out of, by client id."""
        return self.quarantine.out(self._state.round + 1)
