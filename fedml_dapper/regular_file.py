"""Files that an operator names and a process reads while it runs: what is no plain file is not waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link that leads nowhere",
}


def in_place_of_file(path: Path) -> str:
    """What ``path`` is where it is no plain file, in words; empty where it is one, or nothing is there."""
    try:
        mode = path.stat().st_mode if path.exists() else path.lstat().st_mode
    except OSError:
        return ""
    return _KINDS.get(stat.S_IFMT(mode), "")


def read_regular(path: Path, most: int) -> bytes:
    """The first ``most`` bytes of the file at ``path``.

    Raises ``OSError`` where it cannot be read, or is no plain file but a pipe, say, whose reader waits for a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return stream.read(most)
