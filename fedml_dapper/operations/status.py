"""How a running server is: what its loop says of the run, and its transport of callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from fedml_dapper.resident import resident_bytes

State = Literal["waiting", "round", "measuring", "paused", "ending"]
"""``waiting``: for silos, before the first round. ``measuring``: silos test the model of the round just closed."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Progress:
    """What the loop says of the run."""

    state: State = "waiting"
    round: int = 0
    """The open round, else the last one."""
    rounds: int = 0
    since: float = field(default_factory=time.monotonic)
    """When the state or the round began."""
    standings: Mapping[str, str] = field(default_factory=dict)
    """What each caller is at, by name."""
    out: Mapping[str, str] = field(default_factory=dict)
    """Silos in quarantine, or evicted, and until when."""
    absent: tuple[str, ...] = ()
    """Silos that were chosen for the last closed round and did not count in it."""
    refused_uploads: int = 0


class CallerFigures(BaseModel):
    """What the transport says of a caller."""

    model_config = ConfigDict(frozen=True)

    name: str
    connected: bool
    heard_s: float | None
    """Seconds since it last called or was sent something; None if it never did."""
    bytes_in: int
    bytes_out: int
    refused_calls: int


class CallerStatus(CallerFigures):
    """A silo or an edge that calls this server."""

    standing: str


class ServerStatus(BaseModel):
    """All of it."""

    model_config = ConfigDict(frozen=True)

    state: State
    round: int
    rounds: int
    seconds: float
    """Since the state or the round began."""
    loop_s: float
    """Since the loop last did something: while it aggregates or tests, it hears of nothing else."""
    up_s: float
    memory_bytes: int
    callers: tuple[CallerStatus, ...]
    out: dict[str, str]
    absent: tuple[str, ...]
    refused_uploads: int
    refused_strangers: int
    """Calls of certificates that are no caller's."""


class StatusBoard:
    """Where the loop posts and others read. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()
        self._begun = self._turned = time.monotonic()
        self.callers: Callable[[], tuple[Sequence[CallerFigures], int]] = lambda: ((), 0)
        """The transport's: its callers, and how many calls of strangers it refused."""

    def post(self, progress: Progress) -> None:
        """The loop has come round."""
        with self._lock:
            old = self._progress
            if (old.state, old.round) == (progress.state, progress.round):
                progress = replace(progress, since=old.since)
            self._progress = progress
            self._turned = time.monotonic()

    def read(self) -> ServerStatus:
        """As it is now."""
        with self._lock:
            progress = self._progress
            turned = self._turned
        now = time.monotonic()
        callers, strangers = self.callers()
        return ServerStatus(
            state=progress.state,
            round=progress.round,
            rounds=progress.rounds,
            seconds=now - progress.since,
            loop_s=now - turned,
            up_s=now - self._begun,
            memory_bytes=resident_bytes(),
            callers=tuple(CallerStatus(standing=progress.standings.get(one.name, ""), **vars(one)) for one in callers),
            out=dict(progress.out),
            absent=progress.absent,
            refused_uploads=progress.refused_uploads,
            refused_strangers=strangers,
        )
