"""Assignment of an open round's clients to the processes that train them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fedml_dapper.federation import ClientQueue


class Dispatch(Protocol):
    """Interface of the assignment: which process trains which client of an open round."""

    def begin(self, clients: Sequence[int]) -> None:
        """Begin a round of these clients, without those that are at work since an earlier round."""

    def take(self, process: int) -> int | None:
        """Return the client that ``process``, which is free, trains next; None where there is none for it now."""

    def give_back(self, client_id: int) -> None:
        """Put back a client that was taken, and has to be trained once more."""

    def process_of(self, client_id: int) -> int:
        """Return the process that trains a client, or has trained it; 0 where none has taken it."""

    def in_waiting(self) -> list[int]:
        """Return, and forget, the processes that got no client and may get one now that others are done."""

    @property
    def not_taken(self) -> Collection[int]:
        """Clients that no process has taken."""

    def can_be_taken(self, client_id: int, online: Collection[int]) -> bool:
        """Return whether one of the processes ``online`` may take a client that none has taken."""


class Silos:
    """Assignment in which each process is one client of its own: a silo, or an edge."""

    def __init__(self) -> None:
        self._not_taken: set[int] = set()

    def begin(self, clients: Sequence[int]) -> None:
        self._not_taken = set(clients)

    def take(self, process: int) -> int | None:
        client_id = process - 1
        if client_id not in self._not_taken:
            return None
        self._not_taken.remove(client_id)
        return client_id

    def give_back(self, client_id: int) -> None:
        self._not_taken.add(client_id)

    def process_of(self, client_id: int) -> int:
        return client_id + 1

    def in_waiting(self) -> list[int]:
        return []

    @property
    def not_taken(self) -> Collection[int]:
        return self._not_taken

    def can_be_taken(self, client_id: int, online: Collection[int]) -> bool:
        return client_id + 1 in online


class Ranks:
    """Assignment in which the next free process trains the next client: ranks of a simulation, of unequal speed.

    Args:
        processes: How many processes train.
        cost: Cost of a client's round, by client id and in any unit.
        done: Returns the clients whose uploads of the open round have come, or will not come.
    """

    def __init__(self, processes: int, cost: Callable[[int], float], done: Callable[[], Collection[int]]) -> None:
        self._processes = processes
        self._cost = cost
        self._done = done
        self._turns = ClientQueue((), cost, processes)
        self._taken_by: dict[int, int] = {}
        self._waiting: deque[int] = deque()

    def begin(self, clients: Sequence[int]) -> None:
        self._turns = ClientQueue(clients, self._cost, self._processes)
        self._taken_by = {}
        self._waiting = deque()

    def take(self, process: int) -> int | None:
        client_id = self._turns.take(self._done())
        if client_id is not None:
            self._taken_by[client_id] = process
        elif self._turns.left and process not in self._waiting:
            self._waiting.append(process)
        return client_id

    def give_back(self, client_id: int) -> None:
        self._turns.give_back(client_id)
        del self._taken_by[client_id]

    def process_of(self, client_id: int) -> int:
        return self._taken_by.get(client_id, 0)

    def in_waiting(self) -> list[int]:
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    @property
    def not_taken(self) -> Collection[int]:
        return self._turns.left

    def can_be_taken(self, client_id: int, online: Collection[int]) -> bool:
        return bool(online)
