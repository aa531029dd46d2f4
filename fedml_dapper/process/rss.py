"""Measurement of this process's resident memory and its peak, on Linux."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

from fedml_dapper.process.freed_memory import give_back_freed_memory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def peak_extra_bytes(work: Callable[[], object]) -> int:
    """Return by how many bytes resident memory rises while ``work`` runs."""
    gc.collect()
    give_back_freed_memory()  # or memory that was freed before, and is used again, would not show
    _CLEAR.write_text(_FORGET_PEAK)
    before = _kib("VmRSS")
    work()
    return (_kib("VmHWM") - before) * 1024


def resident_bytes() -> int:
    """Return the bytes of resident memory; its peak so far where the system is not Linux."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _kib("VmRSS") * 1024


def peak_bytes() -> int:
    """Return the peak of resident memory in bytes, since the start or the last :func:`peak_extra_bytes`."""
    return _kib("VmHWM") * 1024


def _kib(key: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])
