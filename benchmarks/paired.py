"""Timings of things in turns: what else the machine does falls on all of them, and cancels in a run's ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from statistics import median

import click

Work = Callable[[], object]


def time_in_turns(work: Mapping[str, Work], runs: int, warm_ups: int = 1) -> dict[str, list[float]]:
    """Seconds of each thing in each of ``runs`` runs, after ``warm_ups`` that do not count. Progress is on stderr."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    begun = time.perf_counter()
    for run in range(-warm_ups, runs):
        for name, do in work.items():
            started = time.perf_counter()
            do()
            if run >= 0:
                seconds[name].append(time.perf_counter() - started)
        say_progress(run + warm_ups + 1, runs + warm_ups, begun)
    return seconds


def say_progress(done: int, runs: int, begun: float) -> None:
    """A line on stderr; ``begun`` is of :func:`time.perf_counter`."""
    elapsed = time.perf_counter() - begun
    left = timedelta(seconds=int(elapsed / done * (runs - done)))
    click.echo(f"{done} of {runs} runs in {timedelta(seconds=int(elapsed))}, ETA {left}", err=True)


def median_ratio(seconds: list[float], reference: list[float]) -> float:
    """The median over runs of one thing's time over another's in the same run."""
    return median(one / other for one, other in zip(seconds, reference, strict=True))
