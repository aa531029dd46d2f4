"""A virtual clock: how long a simulation's rounds would take on the fleet's devices, and which uploads come too late.

A client's round is download, training and upload, as computed for its plan, times a random factor. All clients of a
round begin together, and the server takes no time. Where late uploads are kept, clients that are not done when a round
closes go on in the next. Nothing is measured, so times repeat with the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fedml_dapper.config import ClockArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.over_selection import over_selected
from fedml_dapper.fleet.planning import ClientFit
from fedml_dapper.randomness.seeding import Stream, numpy_generator

Outcome = Literal["in time", "late", "surplus", "under way", "gone"]


class AtWork(Protocol):
    """A client at work when a round begins, and when its upload arrives, in seconds of the run."""

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
    """Energy of training, without radio; None where the device's profile has no watts."""

    @property
    def arrives_s(self) -> float:
        """Seconds from the round's beginning until its upload arrives."""
        return self.download_s + self.training_s + self.upload_s


@dataclass(frozen=True)
class RoundTimes:
    """A round on the virtual clock."""

    clients: tuple[ClientTime, ...]
    """Times of all clients that were chosen, by client id."""
    in_time: frozenset[int]
    """Chosen clients whose uploads count."""
    arrived: frozenset[int]
    """Clients that began in earlier rounds and whose uploads count in this one."""
    under_way: frozenset[int]
    """Chosen clients that go on after the round has closed, where late uploads are kept."""
    late: frozenset[int]
    """Clients that are not done at the deadline."""
    gone: frozenset[int]
    """Clients whose device goes off before they are done, while the round is open. Chosen clients in none of these sets
    are not needed any more."""
    round_s: float
    """Seconds from the round's beginning until it closes."""

    def outcome(self, client_id: int) -> Outcome:
        """Return what happened to the upload of ``client_id``."""
        if client_id in self.in_time:
            return "in time"
        if client_id in self.gone:
            return "gone"
        return "under way" if client_id in self.under_way else "late" if client_id in self.late else "surplus"


class VirtualClock:
    """Virtual times of the clients that take part, at the levels that a plan gives them.

    Raises:
        ConfigError: No client can meet the deadline.
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
        """Return how many clients train in a round that wants so many uploads."""
        return over_selected(wanted, self._args.over_selection)

    def online(self, round_: int, at_s: float, client_ids: Iterable[int]) -> list[int]:
        """Return those of ``client_ids`` whose device is on when ``round_`` begins, ``at_s`` seconds into the run."""
        return [client_id for client_id in client_ids if self._stays_s(client_id, round_, at_s) > 0]

    def times(
        self, round_: int, at_s: float, client_ids: Sequence[int], wanted: int, at_work: Sequence[AtWork] = ()
    ) -> RoundTimes:
        """Simulate a round of the clients that were chosen, which begins ``at_s`` seconds into the run.

        The first ``wanted`` uploads count, among them those of clients that are ``at_work`` from earlier rounds.
        """
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
        until = math.inf if self.keeps_late else round_s  # uploads are of use until then
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
        """Seconds for which a client's device stays on from the beginning of a round; 0 where it is off."""
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
    """Seconds until a round closes.

    It closes with the last upload needed, if all that were wanted arrive, else at the deadline. Without a deadline the
    server gives up a device that went off at the time when it should have been done.
    """
    if len(needed) == min(wanted, len(expected)):
        return max((expected[client] for client in needed), default=0.0)
    return min(deadline, max(expected.values()))
