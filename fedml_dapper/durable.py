"""Files that are on the disk whole or not at all, whatever stops the process or the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import lock_descriptor

from fedml_dapper.errors import DataError

SCRATCH_PREFIX = ".unfinished-"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write the file that becomes ``path``, in place of an older one, when the block ends.

    It is written in a :func:`scratch_folder` beside ``path``, so that several may write the same file at once, of which
    the last to end stays. Who may read the file is the umask's to say, whatever wrote it. Raises :class:`DataError`
    where the disk does not take the file.
    """
    with explained(path), scratch_folder(path.parent) as scratch:
        yield scratch / path.name
        (scratch / path.name).chmod(scratch.stat().st_mode & 0o666)  # safetensors makes files for their owner alone
        _flush(scratch / path.name)
        (scratch / path.name).replace(path)
        _flush(path.parent)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent`` for what is being written, no other writer's, which goes again with the block.

    It is locked by this process while the block lasts. A killed process leaves it behind, without the lock; the next
    block for ``parent`` removes it. Raises ``OSError`` where ``parent`` takes no folder.
    """
    _remove_leftovers(parent)
    scratch, lock = _locked_folder(parent)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """A new scratch folder, and this process's open descriptor that locks it, where the file system knows locks."""
    while True:
        scratch = parent / f"{SCRATCH_PREFIX}{uuid4().hex}"
        scratch.mkdir(parents=True)
        try:
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # it looked like a leftover in the moment before its lock
            continue
        try:
            is_locked = lock_descriptor(lock, blocking=False)
        except OSError:  # no locks here, so that nobody takes it for a leftover either
            return scratch, lock
        if is_locked and scratch.exists():
            return scratch, lock
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove scratch folders whose writers live no longer: those that can be locked."""
    for scratch in parent.glob(f"{SCRATCH_PREFIX}*"):
        try:
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone by now, or somebody else's
            continue
        try:
            if lock_descriptor(lock, blocking=False):  # else its writer is at work
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError:  # nobody can tell
            continue
        finally:
            os.close(lock)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """An ``OSError`` of writing ``path`` as a :class:`DataError` that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"cannot write {path.absolute()}: {reason}; mend that, then start it again, a run with --resume"
        ) from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
