"""A new folder of files, which is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.files.atomic import scratch_folder


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes ``out`` when the block ends and is removed when it fails.

    Raises:
        ConfigError: ``out`` is there and not empty, or no name for a folder.
        DataError: It cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already and not empty; choose another folder by -o")
    if not out.name or out.name == "..":  # a folder that is replaced, with whoever stands in it
        raise ConfigError(f"{out} is no name that the new folder could have; name one by -o")
    place = next(folder for folder in out.absolute().parents if folder.is_dir())
    try:
        with scratch_folder(place) as scratch:
            filled = scratch / out.name
            filled.mkdir()
            with _without_its_place(filled):
                yield filled
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.exists():
                out.rmdir()
            filled.rename(out)
    except OSError as error:
        raise DataError(
            f"cannot write {out.absolute()}: {error.strerror or error}; mend that, or choose another folder"
        ) from error


@contextmanager
def _without_its_place(scratch: Path) -> Iterator[None]:
    """Leave the folder ``scratch``, which is gone when errors are read, out of the paths in our errors."""
    try:
        yield
    except DapperError as error:
        if str(scratch) not in str(error):
            raise
        raise type(error)(str(error).replace(f"{scratch}/", "")) from error
