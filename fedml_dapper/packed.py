"""Files that results keep compressed: ``NAME.xz`` stands for ``NAME`` where that is not there."""

from __future__ import annotations

import lzma
from pathlib import Path

from fedml_dapper.errors import DataError

BIG_BYTES = 1 << 28
MAX_INFLATION = 100
"""How many times larger than a packed file its content may be, where that is big."""


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
        return _unpacked(found.read_bytes())
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DataError(f"{found}: cannot be unpacked ({error}); get it anew, e.g. from git") from error


def most_unpacked(packed: int) -> int:
    """Bytes that so many packed ones may unfold into; more would be a trap."""
    return max(BIG_BYTES, MAX_INFLATION * packed)


def _unpacked(packed: bytes) -> bytes:
    """The streams in ``packed``, one behind the other. Raises ``ValueError`` where they are too large."""
    pieces = list[bytes]()
    room = most_unpacked(len(packed))
    rest = packed
    while rest:
        stream = lzma.LZMADecompressor(memlimit=BIG_BYTES)
        pieces.append(stream.decompress(rest, max_length=room + 1))
        room -= len(pieces[-1])
        if room < 0:
            raise ValueError(
                f"{len(packed) >> 10} KiB that unfold into more than {most_unpacked(len(packed)) >> 20} MiB"
            )
        if not stream.eof:
            raise EOFError("it ends early")
        rest = stream.unused_data
    return b"".join(pieces)
