"""Profiling of a round by parts: code marks its part by :func:`part`, and a profiler, if one is active, sums seconds.

Time counts once: while a part runs inside another one, it counts for the inner part alone. ``torch.profiler`` sums no
such times: it keeps every operation of a round, some 800 per step of a small network, and sees one process alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Literal, TypeVar, get_args

import torch
from torch.profiler import record_function

Part = Literal["forward/backward", "optimizer", "data", "pruning", "wire", "aggregation", "evaluation"]
PARTS: tuple[Part, ...] = get_args(Part)
Item = TypeVar("Item")


class Profiler:
    """Sums seconds per part, in the thread that made it. It waits for a GPU, so that its work counts for its part."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self.elsewhere = 0.0
        """Seconds that other processes worked for this one, minus those that it waited for them."""
        self._thread = threading.get_ident()
        self._running: list[Part] = []
        self._since = 0.0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Measure the parts that run in the block; one profiler at a time may be active."""
        global _profiler  # noqa: PLW0603  # parts are marked in all rooms, which know of no profiler
        assert _profiler is None, "another profiler is active"
        _profiler = self
        try:
            yield
        finally:
            _profiler = None

    def enter(self, name: Part) -> None:
        """Begin a part."""
        self._charge()
        self._running.append(name)

    def leave(self) -> None:
        """End the part that began last."""
        self._charge()
        self._running.pop()

    def measures_here(self) -> bool:
        """Return whether the profiler measures the present thread."""
        return threading.get_ident() == self._thread

    def _charge(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


_profiler: Profiler | None = None


def is_profiling() -> bool:
    """Return whether a profiler is active."""
    return _profiler is not None


@contextmanager
def part(name: Part) -> Iterator[None]:
    """Mark a block, or a decorated function, as the part ``name``.

    An active ``torch.profiler`` shows the part as a range of that name, with the operations inside.
    """
    profiler = _profiler
    with record_function(name) if torch._C._autograd._profiler_enabled() else nullcontext():
        if profiler is None or not profiler.measures_here():
            yield
            return
        profiler.enter(name)
        try:
            yield
        finally:
            profiler.leave()


@contextmanager
def apart() -> Iterator[Profiler | None]:
    """Provide a profiler for the block in a forked process, where the parent had an active one; else None."""
    global _profiler  # noqa: PLW0603  # as in Profiler.active
    inherited = _profiler
    _profiler = None
    try:
        if inherited is None:
            yield None
            return
        profiler = Profiler(inherited.device)
        with profiler.active():
            yield profiler
    finally:
        _profiler = inherited


@contextmanager
def waiting() -> Iterator[None]:
    """Mark a block that waits for other processes, whose work counts instead of the wait (:func:`worked_apart`)."""
    started = time.perf_counter()
    try:
        yield
    finally:
        if _profiler is not None and _profiler.measures_here():
            _profiler.elsewhere -= time.perf_counter() - started


def worked_apart(seconds: float, parts: Mapping[Part, float]) -> None:
    """Count ``seconds`` that another process worked for this one, with those that its profiler measured by part."""
    if _profiler is not None and _profiler.measures_here():
        _profiler.elsewhere += seconds
        for name, spent in parts.items():
            _profiler.seconds[name] += spent


def fetching(name: Part, items: Iterable[Item]) -> Iterator[Item]:
    """Yield ``items``, and count the time until each comes for the part ``name``."""
    iterator = iter(items)
    while True:
        with part(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
