"""Files that are plain ones: what else stands at a path is neither waited for nor replaced."""

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


def check_plain(path: Path) -> None:
    """Raise ``OSError`` where something else than a plain file stands at ``path``, e.g. a pipe, which has no end."""
    if found := in_place_of_file(path):
        raise OSError(errno.EINVAL, f"it is {found}, and has to be a plain file", str(path))


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
