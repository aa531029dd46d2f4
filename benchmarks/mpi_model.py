"""What a round under MPI should take, from what one process took for it: the model of docs/runners.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.federation import RoundRecord


@dataclass(frozen=True)
class RoundModel:
    """A round as it was in one process of one thread."""

    clients: tuple[float, ...]
    """Seconds of each client's training."""
    rest: float
    """Seconds of what the server does by itself: choosing, cutting, folding in, testing."""
    messages: float
    """Seconds that the server needs for all models that it sends and receives."""

    @classmethod
    def of(cls, record: RoundRecord, seconds_per_byte: float) -> RoundModel:
        trained = tuple(client.seconds for client in record.clients)
        sent = sum(client.bytes_down + client.bytes_up for client in record.clients)
        return cls(trained, record.seconds.total - sum(trained), sent * seconds_per_byte)

    def seconds(self, ranks: int, cores: int) -> float:
        """With so many training ranks of one thread on ``cores`` cores."""
        return makespan(self.clients, ranks, cores) + self.rest + self.messages


def makespan(seconds: Sequence[float], ranks: int, cores: int) -> float:
    """Until all clients are trained, where a rank that is free takes the longest that is left, and ranks that are more
    than the cores share them."""
    left, clock = sorted(seconds, reverse=True), 0.0
    at_work: list[float] = []
    while left or at_work:
        taken = ranks - len(at_work)
        at_work, left = at_work + left[:taken], left[taken:]
        first = min(at_work)
        clock += first * max(1.0, len(at_work) / cores)
        at_work = [one - first for one in at_work if one > first]
    return clock
