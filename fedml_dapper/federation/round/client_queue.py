"""Order in which clients begin to train, where several train at a time and uploads are folded in client order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.fleet import local_work, round_macs
from fedml_dapper.methods import ClientProfile

AHEAD = 4
"""Clients per trainer that may begin while the next upload in client order is awaited. More would let more uploads wait
in memory, fewer would leave trainers idle behind an expensive client."""


class ClientQueue:
    """Assigns clients to trainers as these become free.

    The most expensive client begins first, so that none is left to train alone at the end. An upload waits for those
    before it in the order of ``clients``, so no client begins far ahead of the next upload in this order: the number of
    uploads that wait does not grow with the number of clients.

    Args:
        clients: Client ids in the order in which uploads are folded.
        cost: Cost of a client's round, in any unit.
        trainers: How many clients train at a time.
    """

    def __init__(self, clients: Sequence[int], cost: Callable[[int], float], trainers: int) -> None:
        self._clients = list(clients)
        self._cost = cost
        self._window = AHEAD * trainers
        self._left = set(clients)
        self._due = 0
        """Position of the client whose upload is to be folded next."""

    @property
    def left(self) -> frozenset[int]:
        """Clients that have not begun."""
        return frozenset(self._left)

    def take(self, done: Collection[int]) -> int | None:
        """Return the client that begins now; None where none is left or none may begin yet.

        Args:
            done: Clients whose uploads have come, or will not come.
        """
        while self._due < len(self._clients) and self._clients[self._due] in done:
            self._due += 1
        near = self._clients[self._due : self._due + self._window]
        chosen = max((client for client in near if client in self._left), key=self._cost, default=None)
        if chosen is not None:
            self._left.remove(chosen)
        return chosen

    def give_back(self, client: int) -> None:
        """Put back a client that began, and has to begin once more."""
        self._left.add(client)


def cost_of_rounds(experiment: Experiment, profile_of: Callable[[int], ClientProfile]) -> Callable[[int], float]:
    """Return a function of the client id that gives the cost of a client's round, in multiply-accumulates."""

    @cache
    def macs(level: int, ratio: float) -> int:
        return round_macs(local_work(experiment.method, ClientProfile(0, "", level, ratio, 0)))

    def cost(client_id: int) -> float:
        profile = profile_of(client_id)
        return macs(profile.level, profile.ratio) * profile.num_samples

    return cost
