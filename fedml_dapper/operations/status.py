"""Status of a running server: progress of the run from its event loop, and figures of callers from its transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from fedml_dapper.process.rss import resident_bytes

State = Literal["waiting", "round", "measuring", "paused", "ending"]
"""State of a server: ``waiting`` for silos before the first round, or for devices before any; ``round``, one is open;
``measuring``, silos test the model of the round just closed; ``paused`` by an operator; ``ending``, clients are told
that the run is over."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Progress:
    """Progress of the run, as the event loop posts it."""

    state: State = "waiting"
    round: int = 0
    """The open round, or the last one where none is open."""
    rounds: int = 0
    """Number of rounds that the run is to have."""
    since: float = field(default_factory=time.monotonic)
    """When the state or the round began, on the monotonic clock."""
    standings: Mapping[str, str] = field(default_factory=dict)
    """What each caller is doing, by name."""
    out: Mapping[str, str] = field(default_factory=dict)
    """Until when silos are in quarantine, or that they are evicted, by name."""
    absent: tuple[str, ...] = ()
    """Silos that were chosen for the last closed round and did not count in it."""
    refused_uploads: int = 0
    there: int | None = None
    """Number of devices that have called lately; None where callers stay connected."""
    lacks: str = ""
    """What a server of devices lacks for its next round; empty where it lacks nothing."""


class CallerFigures(BaseModel):
    """Figures of a caller, from the transport."""

    model_config = ConfigDict(frozen=True)

    name: str
    connected: bool
    heard_s: float | None
    """Seconds since the caller last called or was sent something; None if it never did."""
    bytes_in: int
    bytes_out: int
    refused_calls: int


class CallerStatus(CallerFigures):
    """Status of a silo or an edge that calls this server."""

    standing: str
    """What the caller is doing."""


class ServerStatus(BaseModel):
    """Status of a server, its run and its callers."""

    model_config = ConfigDict(frozen=True)

    state: State
    round: int
    rounds: int
    seconds: float
    """Seconds since the state or the round began."""
    loop_s: float
    """Seconds since the event loop last finished an event. While it aggregates or tests, it handles no messages."""
    up_s: float
    """Seconds since the server started."""
    memory_bytes: int
    callers: tuple[CallerStatus, ...]
    out: dict[str, str]
    absent: tuple[str, ...]
    refused_uploads: int
    refused_strangers: int
    """Number of refused calls with certificates of no known caller."""
    there: int | None = None
    """Number of devices that have called lately; None where callers stay connected. ``callers`` are then those of the
    open round, and those at work."""
    lacks: str = ""
    """What a server of devices lacks for its next round; empty where it lacks nothing."""


class StatusBoard:
    """Board on which the event loop posts its progress, and from which others read the status from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()
        self._begun = self._turned = time.monotonic()
        self.callers: Callable[[], tuple[Sequence[CallerFigures], int]] = lambda: ((), 0)
        """Function of the transport that returns figures of its callers, and the number of refused strangers' calls."""

    def post(self, progress: Progress) -> None:
        """Post the progress, from the event loop."""
        with self._lock:
            old = self._progress
            if (old.state, old.round) == (progress.state, progress.round):
                progress = replace(progress, since=old.since)
            self._progress = progress
            self._turned = time.monotonic()

    def read(self) -> ServerStatus:
        """Return the status as of now."""
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
            there=progress.there,
            lacks=progress.lacks,
        )
