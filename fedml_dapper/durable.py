"""Files that are on the disk whole or not at all, whatever stops the process or the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedml_dapper.errors import DataError

SCRATCH_NAME = ".unfinished"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write the file that becomes ``path``, in place of an older one, when the block ends.

    It is written in a folder of its own beside ``path``, which goes again; a killed process leaves it behind, and the
    next file removes it. Who may read the file is the umask's to say, whatever wrote it. Raises :class:`DataError`
    where the disk does not take the file.
    """
    scratch = path.parent / SCRATCH_NAME
    with explained(path):
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            yield scratch / path.name
            (scratch / path.name).chmod(scratch.stat().st_mode & 0o666)  # safetensors makes files for their owner alone
            _flush(scratch / path.name)
            (scratch / path.name).replace(path)
            _flush(path.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


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
