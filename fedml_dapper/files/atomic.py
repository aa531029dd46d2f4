"""Atomic writing of files: they are on the disk whole or not at all, whatever stops the process or the machine."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import lock_descriptor

from fedml_dapper.errors import DataError
from fedml_dapper.files.regular_file import in_place_of_file

SCRATCH_PREFIX = ".unfinished-"
FOR_ALL = 0o666
"""Most permissions of a file, before the umask takes some away."""
FOR_ITS_OWNER = 0o600
"""Most permissions of a file with a secret."""
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of places that are not for this account to write to."""
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Error numbers of file systems that flush files alone."""
_START_AGAIN = "mend that, then start it again, a run with --resume"


@contextmanager
def written_whole(path: Path, most: int = FOR_ALL) -> Iterator[Path]:
    """Provide a path to write to, whose file replaces ``path`` when the block ends.

    It is in a :func:`scratch_folder` beside ``path``, so that several may write the same file at once; the last to end
    stays. The file's permissions are ``most`` without what the umask takes away, whatever wrote it, also while it is
    written.

    Raises:
        DataError: The disk does not take the file, or something else than a plain file stands at ``path``.
    """
    if found := in_place_of_file(path):  # the new file would take the place of a device or pipe that others use
        raise DataError(f"cannot write {path.absolute()}: that is {found}; name a plain file, or remove it")
    with explained(path), scratch_folder(path.parent, most) as scratch:
        yield scratch / path.name
        (scratch / path.name).chmod(scratch.stat().st_mode & FOR_ALL)  # safetensors makes files for their owner alone
        _flush(scratch / path.name)  # the content before the name, or a crash could leave an empty file under it
        (scratch / path.name).replace(path)
        _flush_folder(path.parent)


@contextmanager
def scratch_folder(parent: Path, most: int = FOR_ALL) -> Iterator[Path]:
    """Provide a new folder in ``parent`` for unfinished files, which is removed at the end of the block.

    Whoever may read files of permissions ``most`` may look into it.

    It is locked by this process while the block lasts. A killed process leaves it behind, without the lock; the next
    block for ``parent`` removes it.

    Raises:
        OSError: No folder can be made in ``parent``.
    """
    _remove_leftovers(parent)
    scratch, lock = _locked_folder(parent, most | (most & 0o444) >> 2)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: Path, mode: int) -> tuple[Path, int]:
    """Make a scratch folder and lock it, where the file system has locks; return it and the descriptor of the lock."""
    while True:
        scratch = parent / f"{SCRATCH_PREFIX}{uuid4().hex}"
        scratch.mkdir(mode, parents=True)
        try:
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
            continue
        try:
            is_locked = lock_descriptor(lock, blocking=False)
        except OSError:  # the file system has no locks, so nobody takes it for a leftover either
            return scratch, lock
        if is_locked and scratch.exists():
            return scratch, lock
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove scratch folders of processes that have ended: those that can be locked."""
    for scratch in parent.glob(f"{SCRATCH_PREFIX}*"):
        try:
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # removed meanwhile, or another user's
            continue
        try:
            if lock_descriptor(lock, blocking=False):  # else it is still being written
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError:  # the file system has no locks
            continue
        finally:
            os.close(lock)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of writing ``path`` into a :class:`DataError` that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        remedy = "let this account write there, or name another place" if error.errno in _NO_ACCESS else _START_AGAIN
        raise DataError(f"cannot write {path.absolute()}: {reason}; {remedy}") from error


def _flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can say so; some shares cannot."""
    try:
        _flush(path)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
