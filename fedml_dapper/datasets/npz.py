"""Arrays from ``.npz`` files, with the sizes that a file states checked before memory is allocated."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Container
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedml_dapper.errors import DataError
from fedml_dapper.files.xz import most_unpacked

Array = NDArray[Any]
_SUFFIX = ".npy"
_DEFLATES_MOST = 1032
"""How many times smaller deflate, by which numpy packs, makes its input at the very most."""


def read_arrays(path: Path, only: Container[str] | None = None) -> dict[str, Array]:
    """Return the arrays of the ``.npz`` at ``path``, or those named in ``only``.

    Raises:
        DataError: The file is damaged.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is no file that could hold arrays")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(_SUFFIX): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if only is None or name in only}
            _check_inflation(sum(info.file_size for info in wanted.values()), path.stat().st_size)
            return {name: _read(archive, info) for name, info in wanted.items()}
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: not a readable .npz of plain arrays ({error}); fetch or pack it again") from error


def _check_inflation(unpacked: int, packed: int) -> None:
    # drawings may shrink as far as deflate can; more is an attack, by another packing or one content under many names
    if unpacked > most_unpacked(packed, _DEFLATES_MOST):
        raise ValueError(f"{packed >> 10} KiB that unfold into {unpacked >> 20} MiB")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as stream:
        shape, dtype = _header(stream)
        size = prod(shape) * dtype.itemsize
        if size > info.file_size:
            raise ValueError(f"`{info.filename:.60}` says that it holds {size} bytes, and has {info.file_size}")
    with archive.open(info) as stream:
        array: Array = npy.read_array(stream, allow_pickle=False)  # type: ignore[no-untyped-call]  # numpy ships it untyped
        return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    first = npy.read_magic(stream) == (1, 0)  # type: ignore[no-untyped-call]  # numpy ships it untyped
    read: Any = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype
