"""Reading of files that an operator names, without waiting for pipes and other files that are no plain ones."""

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
    """Return in words what ``path`` is if it is no plain file; empty if it is one, or nothing is there."""
    try:
        mode = path.stat().st_mode if path.exists() else path.lstat().st_mode
    except OSError:
        return ""
    return _KINDS.get(stat.S_IFMT(mode), "")


def read_regular(path: Path, most: int) -> bytes:
    """Read the first ``most`` bytes of the file at ``path``.

    Raises:
        OSError: The file cannot be read, or is no plain file, e.g. a pipe, whose reader would wait for a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return stream.read(most)
