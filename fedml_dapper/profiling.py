"""Where a round's seconds go: parts of the work say when they begin and end, and a profiler, if one runs, adds up.

Time counts once: while a part runs inside another, only the inner one's clock runs. ``torch.profiler`` adds up no such
times: it keeps every operation of a round, some 800 a step of a small network, and knows nothing of other processes.
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
    """Seconds per part, of the thread that made it; a GPU is waited for, so that its work counts where it belongs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self.elsewhere = 0.0
        """Seconds that other processes worked for this one, less those that it waited for them."""
        self._thread = threading.get_ident()
        self._running: list[Part] = []
        self._since = 0.0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add up what happens in here; one profiler at a time."""
        global _profiler  # noqa: PLW0603  # parts are everywhere, as their clock has to be
        assert _profiler is None, "another profiler is active"
        _profiler = self
        try:
            yield
        finally:
            _profiler = None

    def enter(self, name: Part) -> None:
        self._charge()
        self._running.append(name)

    def leave(self) -> None:
        self._charge()
        self._running.pop()

    def hears(self) -> bool:
        """Whether this is its thread."""
        return threading.get_ident() == self._thread

    def _charge(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


_profiler: Profiler | None = None


@contextmanager
def part(name: Part) -> Iterator[None]:
    """Say that what happens in here, or in the function so decorated, belongs to ``name``.

    A ``torch.profiler`` that runs shows it as a range of that name, with the operations inside.
    """
    profiler = _profiler
    with record_function(name) if torch._C._autograd._profiler_enabled() else nullcontext():
        if profiler is None or not profiler.hears():
            yield
            return
        profiler.enter(name)
        try:
            yield
        finally:
            profiler.leave()


@contextmanager
def apart() -> Iterator[Profiler | None]:
    """In a process that was forked: a profiler of its own for what happens in here, where the parent has one."""
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
    """Wait in here for other processes, whose work counts in place of the time that passes (:func:`worked_apart`)."""
    started = time.perf_counter()
    try:
        yield
    finally:
        if _profiler is not None and _profiler.hears():
            _profiler.elsewhere -= time.perf_counter() - started


def worked_apart(seconds: float, parts: Mapping[Part, float]) -> None:
    """Another process worked ``seconds`` for this one, and spent ``parts`` of them as its profiler says."""
    if _profiler is not None and _profiler.hears():
        _profiler.elsewhere += seconds
        for name, spent in parts.items():
            _profiler.seconds[name] += spent


def fetching(name: Part, items: Iterable[Item]) -> Iterator[Item]:
    """``items``; the time it takes to come by each belongs to ``name``."""
    iterator = iter(items)
    while True:
        with part(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
