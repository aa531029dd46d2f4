"""Lock of a run's folder, so that one process at a time works in it, from its first file to the run's end."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from fedml_dapper.errors import DataError

LOGGER = logging.getLogger(__name__)
_descriptors: dict[Path, int] = {}
"""Open descriptors of the folders that this process has locked."""


def lock_folder(folder: Path) -> bool:
    """Lock ``folder`` for this process; return False where it has the lock already.

    The system releases the lock when the process ends, in whichever way.

    Raises:
        DataError: Another process has the lock.
    """
    folder = folder.resolve()
    if folder in _descriptors:
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    if not try_lock(descriptor, folder):
        os.close(descriptor)
        raise DataError(f"{folder}: another process is at this run; wait for its end, or end it")
    _descriptors[folder] = descriptor
    return True


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file or folder at ``path`` until it is closed; return False where another has locked it.

    On a file system without locks it returns True, and nothing is locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        LOGGER.info("%s is on a file system without locks", path)
    return True


def unlock_folder(folder: Path) -> None:
    """Release the lock of ``folder``; nothing happens where this process does not have it."""
    descriptor = _descriptors.pop(folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)
