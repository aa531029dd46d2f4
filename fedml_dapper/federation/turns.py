"""Which client begins next, where several train at a time and their uploads count in client order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.fleet import local_work, round_macs
from fedml_dapper.methods import ClientProfile

AHEAD = 4
"""Clients per trainer that may have begun before the one whose upload is next has come."""


class Turns:
    """The turns of ``clients``, which one of ``trainers`` takes when it is free.

    The most expensive client by ``cost`` is first, so that none is left to train alone at the end. An upload waits for
    those before it in the order of ``clients``. So no client begins far ahead of the one whose turn it is to count:
    what waits does not grow with the number of clients.
    """

    def __init__(self, clients: Sequence[int], cost: Callable[[int], float], trainers: int) -> None:
        self._clients = list(clients)
        self._cost = cost
        self._window = AHEAD * trainers
        self._left = set(clients)
        self._due = 0
        """Position of the one whose turn it is to count."""

    @property
    def left(self) -> frozenset[int]:
        """Those that have not begun."""
        return frozenset(self._left)

    def take(self, done: Collection[int]) -> int | None:
        """Who begins now, given whose uploads are there or will not come; None where nobody may yet, or is left."""
        while self._due < len(self._clients) and self._clients[self._due] in done:
            self._due += 1
        near = self._clients[self._due : self._due + self._window]
        chosen = max((client for client in near if client in self._left), key=self._cost, default=None)
        if chosen is not None:
            self._left.remove(chosen)
        return chosen

    def give_back(self, client: int) -> None:
        """A client that began has to begin once more."""
        self._left.add(client)


def cost_of_rounds(experiment: Experiment, profile_of: Callable[[int], ClientProfile]) -> Callable[[int], float]:
    """What a client's round takes in comparison with others': its multiply-accumulates."""

    @cache
    def macs(level: int, ratio: float) -> int:
        return round_macs(local_work(experiment.method, ClientProfile(0, "", level, ratio, 0)))

    def cost(client_id: int) -> float:
        profile = profile_of(client_id)
        return macs(profile.level, profile.ratio) * profile.num_samples

    return cost
