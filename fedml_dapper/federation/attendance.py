"""Who takes part in a run: who has joined, who is chosen for a round, and who is left out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from fedml_dapper.federation.announcement import Announcement
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.quarantine import Quarantine
from fedml_dapper.federation.records import ClientRecord
from fedml_dapper.federation.round_feature import RoundFeature
from fedml_dapper.methods import ServerState
from fedml_dapper.seeding import Stream, numpy_generator

LOGGER = logging.getLogger(__name__)


class Attendance:
    """Chooses clients, and keeps ``state.profiles`` as the roster has them."""

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._method = experiment.method
        self._roster = experiment.roster
        self._seed = experiment.settings.common_args.random_seed
        self._wanted = experiment.settings.train_args.client_num_per_round
        self.quarantine = Quarantine(experiment.settings.dapper_args.defence)
        """Who is left out for what was refused, or by an operator."""
        self._state = state
        self.quarantined: tuple[int, ...] = ()
        """Clients that were chosen for the last round, and left out of it."""

    def choose(self, features: Iterable[RoundFeature]) -> list[int]:
        """The clients of the coming round, ascending, each at its level of this round.

        Those in quarantine are chosen like the others, so that samples follow from the seed alone, and then left out.
        """
        chosen = self._choose(features)
        round_ = self._state.round + 1
        if self._roster.varies:
            self._state.profiles = self._roster.profiles(round_)
        self.quarantined = tuple(client_id for client_id in chosen if self.quarantine.holds(client_id, round_))
        return [client_id for client_id in chosen if client_id not in self.quarantined]

    def _choose(self, features: Iterable[RoundFeature]) -> list[int]:
        profiles = self._state.profiles
        wanted = self._wanted
        ids = [one for one in sorted(self._roster.available) if self._method.takes_part(profiles[one].level)]
        for feature in features:
            ids = list(feature.available(ids))
            wanted = feature.wanted(wanted)
        wanted = max(0, wanted)
        if wanted >= len(ids):
            return ids
        stream = numpy_generator(self._seed, Stream.SAMPLING, self._state.round + 1)
        return sorted(stream.choice(ids, wanted, replace=False).tolist())

    def join(self, client_id: int, announcement: Announcement) -> bool:
        """Take note of a silo that says what it holds, also where it is back with more; False if that is no news.

        It takes part from the next round on; in the open one its upload has to fit what it says now. Raises
        :class:`ProtocolError` for one whose device can run no level.
        """
        is_news = self._roster.join(announcement.device(client_id), announcement.profile)
        self._renew(client_id)
        return is_news

    def relieve(self, records: Sequence[ClientRecord]) -> None:
        """Clients that took longer than planned in the round just closed get another level, where the fleet says so."""
        for record in records:
            if self._roster.relieve(record.client, record.level, record.seconds):
                self._renew(record.client)

    def _renew(self, client_id: int) -> None:
        known = list(self._state.profiles)
        known[client_id] = self._roster.profiles(self._state.round + 1)[client_id]
        self._state.profiles = tuple(known)

    def strike(self, client_id: int) -> None:
        """An upload of the client was refused in the open round."""
        if self.quarantine.strike(client_id, self._state.round + 1):
            last = self.quarantine.standing.out_until[client_id]
            LOGGER.warning("client %d is in quarantine up to and including round %d", client_id, last)

    def lift(self, client_id: int) -> bool:
        """Let a client in quarantine, or evicted, take part from the next round on; False where it is neither."""
        return self.quarantine.lift(client_id, self._state.round + 1)

    @property
    def left_out(self) -> Mapping[int, int]:
        """Clients in quarantine, or evicted, and the last round in which they are."""
        return self.quarantine.out(self._state.round + 1)
