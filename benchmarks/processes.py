"""What the system says of processes: who belongs together, their memory, and their seconds of the processor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def family(process: int) -> list[int]:
    """A process and all that it has started."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            children += map(int, file.read_text().split())
    return [process, *(one for child in children for one in family(child))]


def marked(variable: str) -> list[int]:
    """All processes that were started with ``variable``, ``NAME=VALUE``, in their environment.

    Unlike those of a :func:`family`, they are found when their parent has ended or they left its group.
    """
    wanted = variable.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def proportional_mb(process: int) -> float:
    """Its share of the pages that it looks at (PSS)."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024 / 1e6
    return 0.0


def processor_seconds(process: int) -> float:
    """Seconds in which it was computing, user and system, without its children; 0 where it has ended."""
    with contextlib.suppress(OSError):
        _, _, fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0
