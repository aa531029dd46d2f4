"""Reading of files that an operator names, without waiting for pipes and other files that are no plain ones."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


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
