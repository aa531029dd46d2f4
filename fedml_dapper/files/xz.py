"""Reading of files that may be compressed: ``NAME.xz`` stands for ``NAME`` where that does not exist."""

from __future__ import annotations

import lzma
from pathlib import Path

from fedml_dapper.errors import DataError

BIG_BYTES = 1 << 28
"""Content up to this size is always unpacked."""
MAX_INFLATION = 100
"""How many times larger than its ``.xz`` content above ``BIG_BYTES`` may be; more would be a decompression bomb."""


def find(path: Path) -> Path | None:
    """Return ``path``, or the compressed file beside it; None where neither exists."""
    return next((found for found in (path, path.with_name(f"{path.name}.xz")) if found.is_file()), None)


def content(path: Path) -> bytes:
    """Read all bytes of the file at ``path``, unpacked if it is compressed; empty where it does not exist.

    Raises:
        DataError: The file cannot be unpacked.
    """
    found = find(path)
    if found is None:
        return b""
    if found == path:
        return found.read_bytes()
    try:
        return _unpacked(found.read_bytes())
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DataError(f"{found}: cannot be unpacked ({error}); get it anew, e.g. from git") from error


def most_unpacked(packed: int, inflation: int = MAX_INFLATION) -> int:
    """Return the most bytes that a file of ``packed`` bytes may hold: ``BIG_BYTES``, or ``inflation`` times its own."""
    return max(BIG_BYTES, inflation * packed)


def _unpacked(packed: bytes) -> bytes:
    """Unpack all streams in ``packed``. Raises ``ValueError`` where they are too large."""
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
