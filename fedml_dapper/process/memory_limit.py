"""How much more memory this process may take, on Linux: what the machine, a cgroup or a limit of the process leaves."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_OWN_STATUS = Path("/proc/self/status")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryLeft:
    """Bytes that may still be taken, and what sets that bound."""

    bytes: int
    bound: str


def memory_left(cgroups: Path = _CGROUPS) -> MemoryLeft | None:
    """Return what the narrowest bound leaves; None on systems that do not say."""
    bounds = [*_of_machine(), *_of_process(), *_of_cgroup(cgroups)]
    return min(bounds, key=lambda found: found.bytes, default=None)


def narrowest_limit(cgroups: Path = _CGROUPS) -> int | None:
    """Return how many bytes this process may have in all, by its own limits and its cgroup's; None without limits."""
    own = [soft for _, soft, _ in _limits_of_process()]
    return min([*own, *(limit for limit, _ in _limits_of_cgroup(cgroups))], default=None)


def _of_machine() -> list[MemoryLeft]:
    if not _MACHINE.exists():
        return []
    return [MemoryLeft(_kib(_MACHINE, "MemAvailable"), "what is free on this machine")]


def _of_process() -> list[MemoryLeft]:
    """Limits of the process, less what it has of each."""
    return [
        MemoryLeft(max(0, soft - _kib(_OWN_STATUS, taken)), f"the limit {name} of this process")
        for name, soft, taken in _limits_of_process()
    ]


def _limits_of_process() -> list[tuple[str, int, str]]:
    """Name, limit and key of what is taken, of data (RLIMIT_DATA) and of addresses (RLIMIT_AS), where there is one."""
    if not _OWN_STATUS.exists():
        return []
    kinds = (("RLIMIT_DATA", resource.RLIMIT_DATA, "VmData"), ("RLIMIT_AS", resource.RLIMIT_AS, "VmSize"))
    limits = [(name, resource.getrlimit(kind)[0], taken) for name, kind, taken in kinds]
    return [each for each in limits if each[1] != resource.RLIM_INFINITY]


def _of_cgroup(cgroups: Path) -> list[MemoryLeft]:
    """Limits of the process's cgroup and those around it, less what they hold; pages of files can be dropped."""
    return [
        MemoryLeft(max(0, limit - held), "the limit of this process's cgroup")
        for limit, held in _limits_of_cgroup(cgroups)
    ]


def _limits_of_cgroup(cgroups: Path) -> list[tuple[int, int]]:
    """Limits of the process's cgroup and those around it, each with what is held there and cannot be dropped."""
    if not _OWN_CGROUP.exists():
        return []
    found = []
    for hierarchy, controllers, path in (line.split(":", 2) for line in _OWN_CGROUP.read_text().splitlines()):
        if hierarchy == "0":
            found += _of_folders(cgroups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):  # the first version of cgroups
            found += _of_folders(cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return found


def _of_folders(top: Path, path: str, limit_name: str, held_name: str) -> list[tuple[int, int]]:
    """Return limit and held bytes of the cgroup at ``path`` below ``top``, and of those around it."""
    inside = top / path.lstrip("/")
    found = []
    for folder in (inside, *(one for one in inside.parents if one.is_relative_to(top))):
        limit = _number(folder / limit_name)
        held = _number(folder / held_name)
        if limit is not None and held is not None:
            found.append((limit, held - _file_pages(folder / "memory.stat")))
    return found


def _number(file: Path) -> int | None:
    """Return the number in ``file``; None where there is no such file, or no limit ("max")."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)


def _file_pages(file: Path) -> int:
    """Return the bytes of a cgroup that hold pages of files."""
    rows = (line.split() for line in file.read_text().splitlines()) if file.is_file() else ()
    return sum(int(value) for name, value in rows if name in ("active_file", "inactive_file"))


def _kib(file: Path, key: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
