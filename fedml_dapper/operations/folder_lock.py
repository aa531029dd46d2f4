"""Lock of a folder, so that an operator's command and a server change its files one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedml_dapper.errors import DataError
from fedml_dapper.run_lock import try_lock

LOCK_NAME = ".members.lock"
_PAUSE_SECONDS = 0.05


class FolderBusyError(DataError):
    """Another process holds the lock of a folder."""


@contextmanager
def folder_locked(folder: Path, seconds: float = 10.0) -> Iterator[None]:
    """Hold the lock of ``folder`` for the length of the block.

    Raises:
        FolderBusyError: Another process still holds the lock after ``seconds``.
        DataError: Nothing can be written into the folder.
    """
    file = folder / LOCK_NAME
    deadline = time.monotonic() + seconds
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(f"cannot write into {folder.absolute()}: {error.strerror}") from error
    try:
        while not try_lock(descriptor, file):
            if time.monotonic() >= deadline:
                raise FolderBusyError(f"another process writes into {folder.absolute()}")
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)
