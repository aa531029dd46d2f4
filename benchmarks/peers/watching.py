"""A simulator from outside: the memory and the processor's seconds of all its processes, at short intervals."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np

from benchmarks.processes import marked, processor_seconds, proportional_mb

_LOOK_EVERY_S = 0.2
_MARK = "DAPPER_PEERS_RUN"
_LAST_LOOKS = 3
_LAST_OF_LOG = 3000


class FailedError(Exception):
    """A simulator did not end well; the message is the end of what it said."""


@dataclass(frozen=True)
class Watched:
    """What was seen of a run."""

    times: Sequence[float]
    """When it was looked, by :func:`time.monotonic`."""
    seconds: Sequence[float]
    """The processor's seconds of all processes up to then, ended ones included."""
    peak_mb: float
    """The most that all processes took together; shared pages count once."""

    def seconds_between(self, begin: float, end: float) -> float:
        """Return the processor's seconds from ``begin`` to ``end``, between looks by interpolation."""
        before, after = np.interp([begin, end], self.times, self.seconds)
        return float(after - before)


def watch(command: Sequence[str], environment: dict[str, str], log: Path) -> Watched:
    """Run ``command`` to its end, and end whatever process it leaves behind.

    Raises:
        FailedError: It exits with another code than 0.
    """
    mark = f"{_MARK}={uuid4()}"
    name, _, value = mark.partition("=")
    times = list[float]()
    seconds = list[float]()
    peak = 0.0
    of_process = dict[int, float]()
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment | {name: value}, stdout=stream, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                found = marked(mark)
                peak = max(peak, sum(map(proportional_mb, found)))
                for one in found:
                    of_process[one] = max(of_process.get(one, 0.0), processor_seconds(one))
                times.append(time.monotonic())
                seconds.append(sum(of_process.values()))
                time.sleep(_LOOK_EVERY_S)
        finally:
            _end_all(mark)
            process.wait()
    if process.returncode != 0:
        raise FailedError(f"{' '.join(command)} failed:\n{log.read_text(errors='replace')[-_LAST_OF_LOG:]}")
    return Watched(times, seconds, peak)


def _end_all(mark: str) -> None:
    """End all marked processes, until several looks find none: while one starts another program, its mark is hidden."""
    looks = 0
    while looks < _LAST_LOOKS:
        found = marked(mark)
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        looks = 0 if found else looks + 1
        time.sleep(_LOOK_EVERY_S)
