"""Registry of the processes that call a server or an edge: which are online, were restarted or have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum, auto

MAX_STARTS = 3
"""How often a process may be started again in one round, and be sent the round's model once more."""


class Arrival(Enum):
    """Kind of a report of a process that it is online."""

    FIRST = auto()
    """The process was never online before."""
    RESTARTED = auto()
    """The process was started again, and knows nothing of what it was sent before."""
    STILL_HERE = auto()
    """The process was online already, for example before its connection was cut."""


class Callers:
    """Registry of the processes that call, by rank.

    Each start of a process is called a life. The process draws a random number for it, and sends that when it calls.

    Args:
        expected: The ranks that take part in the run.
    """

    def __init__(self, expected: Collection[int]) -> None:
        self.expected = frozenset(expected)
        self.online: set[int] = set()
        self.schemas: dict[int, int] = {}
        """Schema of the messages that each process is sent, by rank."""
        self._last_heard: dict[int, str] = {}
        """Life in which each process called last, by rank, whether or not it can take part."""
        self._lives: dict[int, str] = {}
        """Life in which each process came online last, by rank."""
        self._starts: Counter[int] = Counter()
        """How often each process was started again since the round began."""
        self._rounds_away: Counter[int] = Counter()
        """Rounds that have begun without each lost process, by rank."""
        self._left: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """Expected processes that are not online."""
        return sorted(self.expected - self.online)

    @property
    def known(self) -> frozenset[int]:
        """Processes that were online at some time; those that were lost may be there all the same."""
        return frozenset(self._lives)

    def asked_again(self) -> list[int]:
        """Count a round without the lost processes; return those that are to be asked now whether they are back.

        They are asked in the 1st, 2nd, 4th, 8th, ... of these rounds, the one in which they were lost being the first:
        each may cost the time in which a call fails.
        """
        lost = self.known - self.online
        self._rounds_away.update(lost)
        return sorted(process for process in lost if self._rounds_away[process].bit_count() == 1)

    @property
    def all_finished(self) -> bool:
        """Whether all processes that are online have confirmed the end of the run."""
        return self._left >= self.online

    def heard(self, process: int, life: str) -> None:
        """Note the life in which a process calls, whether or not it can take part."""
        self._last_heard[process] = life

    def last_life(self, process: int) -> str | None:
        """Return the life in which a process called last; None where it never did."""
        return self._last_heard.get(process)

    def arrived(self, process: int, life: str) -> Arrival:
        """Count a process that can take part as online, and return whether that is news."""
        self.online.add(process)
        self._rounds_away.pop(process, None)
        before = self._lives.get(process)
        self._lives[process] = life
        if before is None:
            return Arrival.FIRST
        if before == life:
            return Arrival.STILL_HERE
        self._starts[process] += 1
        return Arrival.RESTARTED

    def has_been_online(self, process: int) -> bool:
        """Return whether a process was online at some time."""
        return process in self._lives

    def begin_round(self) -> None:
        """Count restarts from 0 again."""
        self._starts.clear()

    def starts_too_often(self, process: int) -> bool:
        """Return whether a process was started again more than :data:`MAX_STARTS` times since the round began."""
        return self._starts[process] > MAX_STARTS

    def answered(self, process: int) -> None:
        """Note that a process that was online has answered, so that it can be reached again if it was lost."""
        if process in self._lives:
            self.online.add(process)
            self._rounds_away.pop(process, None)

    def lost(self, process: int) -> None:
        """Note that a process cannot be reached, or may no longer call."""
        self.online.discard(process)

    def mark_finished(self, process: int) -> None:
        """Note that a process has confirmed the end of the run, or cannot be told of it."""
        self._left.add(process)
