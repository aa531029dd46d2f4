"""A virtual clock: how long a simulation's rounds would take on the fleet's devices, and whose uploads come too late.

A client's round is download, training and upload, as its plan reckons them, times what varies. All clients of a round
begin together, and servers compute in no time. Where late uploads are kept, those who are not done when a round closes
go on in the next. Nothing is measured, so that times repeat with the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fedml_dapper.config import ClockArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.planning import ClientFit
from fedml_dapper.seeding import Stream, numpy_generator

Outcome = Literal["in time", "late", "surplus", "under way", "gone"]


class AtWork(Protocol):
    """A client that a round finds at work, and when its upload arrives, in seconds from the run's beginning."""

    @property
    def client(self) -> int: ...

    @property
    def arrives_s(self) -> float: ...


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
    """Those of them whose uploads count."""
    arrived: frozenset[int]
    """Those who began in earlier rounds, and whose uploads count in this one."""
    under_way: frozenset[int]
    """Those of the chosen who go on when the round is closed, where late uploads are kept."""
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
        if client_id in self.gone:
            return "gone"
        return "under way" if client_id in self.under_way else "late" if client_id in self.late else "surplus"


class VirtualClock:
    """The times of a fleet's clients that take part, at the levels that a plan gives them.

    Raises :class:`ConfigError` for a deadline that no client can meet.
    """

    def __init__(self, args: ClockArgs, clients: Sequence[ClientFit], seed: int) -> None:
        self._args = args
        self._seed = seed
        self._plan = {one.client.client_id: one for one in clients}
        fastest = min(self._plan.values(), key=lambda one: one.fit.use.seconds)
        if args.deadline_s is not None and fastest.fit.use.seconds > args.deadline_s:
            raise ConfigError(
                f"dapper_args.fleet.clock.deadline_s: nobody is done within {args.deadline_s:g} s; fastest is client"
                f" {fastest.client.client_id} ({fastest.profile}) with {fastest.fit.use.seconds:.1f} s, of which"
                f" {fastest.fit.use.download_s:.1f} s of download. Raise it"
            )

    @property
    def keeps_late(self) -> bool:
        """Whether late uploads count in the round in which they arrive."""
        return self._args.late == "kept"

    def chosen(self, wanted: int) -> int:
        """How many clients are at work in a round that wants so many uploads."""
        return math.ceil(round(self._args.over_selection * wanted, 9))

    def online(self, round_: int, at_s: float, client_ids: Iterable[int]) -> list[int]:
        """Those of ``client_ids`` whose device is on where ``round_`` begins, ``at_s`` seconds into the run."""
        return [client_id for client_id in client_ids if self._stays_s(client_id, round_, at_s) > 0]

    def times(
        self, round_: int, at_s: float, client_ids: Sequence[int], wanted: int, at_work: Sequence[AtWork] = ()
    ) -> RoundTimes:
        """The round of those that were chosen, which begins ``at_s`` seconds into the run and finds others ``at_work``;
        the first ``wanted`` uploads of them all count."""
        clients = tuple(self._time(self._plan[client_id], round_) for client_id in client_ids)
        deadline = math.inf if self._args.deadline_s is None else self._args.deadline_s
        stays_s = {one.client: self._stays_s(one.client, round_, at_s) for one in clients}
        expected = {one.client: one.arrives_s for one in clients} | {
            one.client: max(0.0, one.arrives_s - at_s) for one in at_work
        }
        coming = [client for client, arrives_s in expected.items() if arrives_s <= stays_s.get(client, math.inf)]
        coming.sort(key=lambda client: (expected[client], client))
        needed = frozenset([client for client in coming if expected[client] <= deadline][:wanted])
        round_s = _closes_s(expected, needed, wanted, deadline)
        missed = [one for one in clients if one.client not in needed]
        until = math.inf if self.keeps_late else round_s  # for how long their uploads are of use
        gone = frozenset(one.client for one in missed if stays_s[one.client] < min(until, one.arrives_s))
        return RoundTimes(
            clients=clients,
            in_time=needed & stays_s.keys(),
            arrived=needed - stays_s.keys(),
            under_way=frozenset(one.client for one in missed) - gone if self.keeps_late else frozenset(),
            late=frozenset(one.client for one in missed if one.arrives_s > deadline) - gone,
            gone=gone,
            round_s=round_s,
        )

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
        use = one.fit.use
        watts = one.device.watts
        return ClientTime(
            client=one.client.client_id,
            download_s=network * use.download_s,
            training_s=training * use.training_s,
            upload_s=network * use.upload_s,
            joules=None if watts is None else watts.value * training * use.training_s,
        )


def _closes_s(expected: Mapping[int, float], needed: frozenset[int], wanted: int, deadline: float) -> float:
    """With the last upload that counts where all that were wanted are there, else at the deadline. Without a deadline
    the server gives a device up that went off when it should have been done."""
    if len(needed) == min(wanted, len(expected)):
        return max((expected[client] for client in needed), default=0.0)
    return min(deadline, max(expected.values()))
