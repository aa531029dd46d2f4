"""The processes that call a server or an edge: who is there, in which life, and who has gone home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum, auto

MAX_STARTS = 3
"""How often a process may be started again in one round, and be sent the round's model once more."""


class Arrival(Enum):
    """What it means that a process says that it is there."""

    FIRST = auto()
    """It was never here before."""
    RESTARTED = auto()
    """It was started again, and knows nothing of what its earlier life was sent."""
    STILL_HERE = auto()
    """It says so once more, for example after its connection was cut."""


class Callers:
    """What is known of each process that calls, by its rank.

    Each start of a process is a life of its own, which the process names when it calls.

    Args:
        expected: The ranks that take part in the run.
    """

    def __init__(self, expected: Collection[int]) -> None:
        self.expected = frozenset(expected)
        self.online: set[int] = set()
        self.schemas: dict[int, int] = {}
        """The schema of messages in which a process is spoken to."""
        self._last_words: dict[int, str] = {}
        self._lives: dict[int, str] = {}
        self._starts: Counter[int] = Counter()
        self._gone_home: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """Expected processes that are not online."""
        return sorted(self.expected - self.online)

    @property
    def everybody_left(self) -> bool:
        """Whether all who are online have confirmed the end of the run."""
        return self._gone_home >= self.online

    def heard(self, process: int, life: str) -> None:
        """Note in which life a process spoke last, whether or not it can take part."""
        self._last_words[process] = life

    def last_heard_life(self, process: int) -> str | None:
        """The life in which a process spoke last."""
        return self._last_words.get(process)

    def arrived(self, process: int, life: str) -> Arrival:
        """Count a process that can take part as online."""
        self.online.add(process)
        before = self._lives.get(process)
        self._lives[process] = life
        if before is None:
            return Arrival.FIRST
        if before == life:
            return Arrival.STILL_HERE
        self._starts[process] += 1
        return Arrival.RESTARTED

    def was_here(self, process: int) -> bool:
        """Whether a process was online at some time."""
        return process in self._lives

    def begin_round(self) -> None:
        """Count restarts from 0."""
        self._starts.clear()

    def starts_too_often(self, process: int) -> bool:
        """Whether a process was started again more than :data:`MAX_STARTS` times since the round began."""
        return self._starts[process] > MAX_STARTS

    def lost(self, process: int) -> None:
        """A process cannot be reached, or may no longer call."""
        self.online.discard(process)

    def went_home(self, process: int) -> None:
        """A process has confirmed the end of the run, or cannot be told of it."""
        self._gone_home.add(process)
