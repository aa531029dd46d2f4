"""A virtual clock: how long a simulation's rounds would take on the fleet's devices, and whose uploads come too late.

A client's round is download, training and upload, as its plan reckons them, times what varies. All clients of a round
begin together, and servers compute in no time. Nothing is measured, so that times repeat with the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedml_dapper.config import ClockArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.planning import ClientFit
from fedml_dapper.seeding import Stream, numpy_generator

Outcome = Literal["in time", "late", "surplus", "gone"]


@dataclass(frozen=True)
class ClientTime:
    """A client's round, in virtual seconds."""

    client: int
    download_s: float
    training_s: float
    upload_s: float
    joules: float | None
    """That training takes, without radio; None where the device's profile has no watts."""

    @property
    def arrives_s(self) -> float:
        """When its upload is there, after the round's beginning."""
        return self.download_s + self.training_s + self.upload_s


@dataclass(frozen=True)
class RoundTimes:
    """A round on the virtual clock."""

    clients: tuple[ClientTime, ...]
    """Everyone that was chosen, by client id."""
    in_time: frozenset[int]
    """Those whose uploads count."""
    late: frozenset[int]
    """Those that are not done at the deadline."""
    gone: frozenset[int]
    """Those whose device goes off before they are done, while the round is open. All others are not needed any more."""
    round_s: float
    """When the round closes, after its beginning."""

    def outcome(self, client_id: int) -> Outcome:
        """What became of the upload of ``client_id``."""
        if client_id in self.in_time:
            return "in time"
        return "gone" if client_id in self.gone else "late" if client_id in self.late else "surplus"


class VirtualClock:
    """The times of a fleet's clients that take part, at the levels that a plan gives them.

    Raises :class:`ConfigError` for a deadline that no client can meet.
    """

    def __init__(self, args: ClockArgs, clients: Sequence[ClientFit], seed: int) -> None:
        self._args, self._seed = args, seed
        self._plan = {one.client.client_id: one for one in clients}
        fastest = min(self._plan.values(), key=lambda one: one.fit.use.seconds)
        if args.deadline_s is not None and fastest.fit.use.seconds > args.deadline_s:
            raise ConfigError(
                f"dapper_args.fleet.clock.deadline_s: nobody is done within {args.deadline_s:g} s; fastest is client"
                f" {fastest.client.client_id} ({fastest.profile}) with {fastest.fit.use.seconds:.1f} s, of which"
                f" {fastest.fit.use.download_s:.1f} s of download. Raise it"
            )

    def chosen(self, wanted: int) -> int:
        """How many clients begin a round that wants so many uploads."""
        return math.ceil(round(self._args.over_selection * wanted, 9))

    def online(self, round_: int, at_s: float, client_ids: Iterable[int]) -> list[int]:
        """Those of ``client_ids`` whose device is on where ``round_`` begins, ``at_s`` seconds into the run."""
        return [client_id for client_id in client_ids if self._stays_s(client_id, round_, at_s) > 0]

    def times(self, round_: int, at_s: float, client_ids: Sequence[int], wanted: int) -> RoundTimes:
        """The round of those that were chosen, which begins ``at_s`` seconds into the run; the first ``wanted`` uploads
        count."""
        clients = tuple(self._time(self._plan[client_id], round_) for client_id in client_ids)
        deadline = math.inf if self._args.deadline_s is None else self._args.deadline_s
        stays_s = {one.client: self._stays_s(one.client, round_, at_s) for one in clients}
        arrivals = sorted((one.arrives_s, one.client) for one in clients if one.arrives_s <= stays_s[one.client])
        needed = frozenset([client for arrives_s, client in arrivals if arrives_s <= deadline][:wanted])
        round_s = self._closes_s(clients, needed, wanted, deadline)
        missed = [one for one in clients if one.client not in needed]
        gone = frozenset(one.client for one in missed if stays_s[one.client] < min(round_s, one.arrives_s))
        return RoundTimes(
            clients=clients,
            in_time=needed,
            late=frozenset(one.client for one in missed if one.arrives_s > deadline) - gone,
            gone=gone,
            round_s=round_s,
        )

    def _closes_s(self, clients: Sequence[ClientTime], needed: frozenset[int], wanted: int, deadline: float) -> float:
        """With the last upload that counts where all that were wanted are there, else at the deadline. Without a
        deadline the server gives a device up that went off when it should have been done."""
        last = max((one.arrives_s for one in clients if one.client in needed), default=0.0)
        if len(needed) == min(wanted, len(clients)):
            return last
        return min(deadline, max(one.arrives_s for one in clients))

    def _stays_s(self, client_id: int, round_: int, at_s: float) -> float:
        """For how long a client's device is on from the beginning of a round; 0 where it is off."""
        availability = self._plan[client_id].device.availability
        if availability is None:
            return math.inf
        if availability.share is None:
            return availability.stays_s(at_s)
        draw = numpy_generator(self._seed, Stream.AVAILABILITY, client_id, round_).random()
        return math.inf if draw < availability.share else 0.0

    def _time(self, one: ClientFit, round_: int) -> ClientTime:
        draws = numpy_generator(self._seed, Stream.CLOCK, one.client.client_id, round_)
        training, network = (math.exp(self._args.jitter * draw) for draw in draws.standard_normal(2).tolist())
        use, watts = one.fit.use, one.device.watts
        return ClientTime(
            client=one.client.client_id,
            download_s=network * use.download_s,
            training_s=training * use.training_s,
            upload_s=network * use.upload_s,
            joules=None if watts is None else watts.value * training * use.training_s,
        )
