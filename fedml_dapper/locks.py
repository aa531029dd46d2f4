"""Locks between processes, by filelock: a file that says who holds it, and that is free once its holder is gone."""

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

LOGGER = logging.getLogger(__name__)
RUN_LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What a file system without locks answers. Nothing is locked there."""
_LONGEST_NAME = 400
_held: dict[Path, FileLock] = {}
"""By the folder of a run that this process is at."""


class HeldError(DataError):
    """Another process holds the lock, and is named."""

    def __init__(self, file: Path, holder: str) -> None:
        super().__init__(f"another process writes into {file.parent.absolute()}: {holder}")
        self.holder = holder


def take(file: Path, seconds: float = 0.0) -> FileLock:
    """The lock in ``file``, held by this process until it ends or gives it back (:func:`give_back`).

    Raises :class:`HeldError` where another holds it for ``seconds``, and :class:`DataError` where ``file`` cannot be
    written.
    """
    everyone = 0o666  # or what is left of a lock of root's would keep out other accounts
    lock = FileLock(file, timeout=seconds, mode=everyone, thread_local=False, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise HeldError(file, _holder(file)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise DataError(f"cannot write into {file.parent.absolute()}: {error.strerror}") from error
        LOGGER.info("%s is on a file system without locks", file)
    return lock


def give_back(lock: FileLock) -> None:
    """Let others have ``lock``; nothing happens where this process does not hold it."""
    if lock.is_locked:
        Path(lock.lock_file).unlink(missing_ok=True)  # who waits for this file notices, and takes a new one
        lock.release()


@contextmanager
def locked(file: Path, seconds: float = 0.0) -> Iterator[None]:
    """Nobody else is in such a block for ``file``. Raises what :func:`take` does."""
    lock = take(file, seconds)
    try:
        yield
    finally:
        give_back(lock)


def lock_folder(folder: Path) -> bool:
    """Lock the run in ``folder`` for this process; False where it held the lock already.

    Raises :class:`DataError` where another process has it.
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
    """Let other processes work in ``folder``; nothing happens where this one does not hold its lock."""
    lock = _held.pop(folder.resolve(), None)
    if lock is not None:
        give_back(lock)


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file or folder at ``path`` until it is closed; False where another has locked it. On a file system
    without locks nothing is locked."""
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        LOGGER.info("%s is on a file system without locks", path)
    return True


def _sign(descriptor: int) -> None:
    """Write into a lock's file who has it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _holder(file: Path) -> str:
    """Who holds the lock in ``file``, as far as that can be read."""
    try:
        with file.open("rb") as stream:
            name = stream.read(_LONGEST_NAME).decode(errors="replace")
    except OSError:
        name = ""
    return on_one_line(name) or "one that did not say which"
