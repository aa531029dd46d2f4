"""Resident memory of this process and its peak, on Linux."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

from fedml_dapper.freed_memory import give_back_freed_memory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def peak_extra_bytes(work: Callable[[], object]) -> int:
    """How far resident memory rises above where it was while ``work`` runs."""
    gc.collect()
    give_back_freed_memory()  # or it would hide what is needed again
    _CLEAR.write_text(_FORGET_PEAK)
    before = _kib("VmRSS")
    work()
    return (_kib("VmHWM") - before) * 1024


def resident_bytes() -> int:
    """What is resident now; the most that ever was, where the system is not Linux."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _kib("VmRSS") * 1024


def peak_bytes() -> int:
    """The most that was ever resident, or since the peak was last forgotten."""
    return _kib("VmHWM") * 1024


def _kib(key: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])
