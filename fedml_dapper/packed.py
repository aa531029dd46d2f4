"""Files that results keep compressed: ``NAME.xz`` stands for ``NAME`` where that is not there."""

from __future__ import annotations

import lzma
from pathlib import Path

from fedml_dapper.errors import DataError


def find(path: Path) -> Path | None:
    """The file at ``path``, or its compressed copy beside it; None where there is neither."""
    return next((found for found in (path, path.with_name(f"{path.name}.xz")) if found.is_file()), None)


def content(path: Path) -> bytes:
    """All bytes of the file that ``path`` stands for, unpacked; none where there is none. Raises :class:`DataError`
    where it cannot be unpacked."""
    found = find(path)
    if found is None:
        return b""
    if found == path:
        return found.read_bytes()
    try:
        return lzma.decompress(found.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{found}: cannot be unpacked ({error}); get it anew, e.g. from git") from error
