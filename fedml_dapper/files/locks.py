"""Locks between processes: files that name the process that holds them, and that its end releases in whichever way."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from fedml_dapper.errors import DataError, on_one_line
from fedml_dapper.files.regular_file import in_place_of_file

LOGGER = logging.getLogger(__name__)
RUN_LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of file systems without locks, where nothing is locked."""
_LONGEST_NAME = 400
_held: dict[Path, FileLock] = {}
"""Locks of the runs' folders that this process has locked."""


class HeldError(DataError):
    """Another process holds the lock; the message names it."""

    def __init__(self, file: Path, holder: str) -> None:
        super().__init__(f"another process writes into {file.parent.absolute()}: {holder}")
        self.holder = holder


def take(file: Path, seconds: float = 0.0) -> FileLock:
    """Take the lock in ``file``, which this process has until it ends or calls :func:`give_back`.

    Raises:
        HeldError: Another process still has the lock after ``seconds``.
        DataError: ``file`` cannot be written, or is no plain file.
    """
    if found := in_place_of_file(file):
        raise DataError(f"{file.absolute()}: that is {found}, where the file of a lock belongs; remove it")
    everyone = 0o666  # else a file that root left behind would keep out other accounts
    lock = FileLock(file, timeout=seconds, mode=everyone, thread_local=False, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise HeldError(file, _holder(file)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise DataError(
                f"cannot write into {file.parent.absolute()}: {error.strerror}; mend that, or name another folder"
            ) from error
        LOGGER.info("%s is on a file system without locks", file)
    return lock


def give_back(lock: FileLock) -> None:
    """Release ``lock``; nothing happens where this process does not have it."""
    if lock.is_locked:
        Path(lock.lock_file).unlink(missing_ok=True)  # filelock notices while it waits, and makes a new file
        lock.release()


@contextmanager
def locked(file: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock in ``file`` for the length of the block; raises the errors of :func:`take`."""
    lock = take(file, seconds)
    try:
        yield
    finally:
        give_back(lock)


def lock_folder(folder: Path) -> bool:
    """Lock the run in ``folder`` for this process; return False where it has the lock already.

    Raises:
        DataError: Another process has the lock.
    """
    folder = folder.resolve()
    if folder in _held:
        return False
    try:
        _held[folder] = take(folder / RUN_LOCK_NAME)
    except HeldError as error:
        raise DataError(
            f"{folder}: another process is at this run ({error.holder}); wait for its end, or end it"
        ) from error
    return True


def unlock_folder(folder: Path) -> None:
    """Release the lock of the run in ``folder``; nothing happens where this process does not have it."""
    lock = _held.pop(folder.resolve(), None)
    if lock is not None:
        give_back(lock)


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file or folder at ``path`` until it is closed; return False where another has locked it.

    On a file system without locks it returns True, and nothing is locked.
    """
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        LOGGER.info("%s is on a file system without locks", path)
    return True


def _sign(descriptor: int) -> None:
    """Write this process's name into the file of a lock."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _holder(file: Path) -> str:
    """Return the name of the process that has the lock in ``file``, if it can be read."""
    try:
        with file.open("rb") as stream:
            name = stream.read(_LONGEST_NAME).decode(errors="replace")
    except OSError:
        name = ""
    return on_one_line(name) or "one that did not say which"
