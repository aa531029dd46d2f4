"""One process at a time works in a run's folder, from before it writes anything there until the run ends."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from fedml_dapper.errors import DataError

LOGGER = logging.getLogger(__name__)
_held: dict[Path, int] = {}
"""This process's open descriptors of the folders that it has locked."""


def lock_folder(folder: Path) -> bool:
    """Lock ``folder`` for this process; False where it held the lock already.

    The system takes the lock back when the process ends, however it ends. Raises :class:`DataError` where another
    process has it.
    """
    folder = folder.resolve()
    if folder in _held:
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    if not try_lock(descriptor, folder):
        os.close(descriptor)
        raise DataError(f"{folder}: another process is at this run; wait for its end, or end it")
    _held[folder] = descriptor
    return True


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file or folder at ``path`` until it is closed; False where another has locked it. On a file system
    without locks nothing is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        LOGGER.info("%s is on a file system without locks", path)
    return True


def unlock_folder(folder: Path) -> None:
    """Let other processes work in ``folder``; nothing happens where this one does not hold its lock."""
    descriptor = _held.pop(folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)
