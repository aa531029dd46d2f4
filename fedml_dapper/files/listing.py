"""What a folder holds, in short: a digest of its files' names and sizes."""

from __future__ import annotations

import hashlib
from pathlib import Path

_DIGITS = 12


def listing_digest(folder: Path) -> str:
    """Return a digest of the names below ``folder`` and of the sizes of its files; it is the same in any place.

    A picture that was changed without a change of its size is not noticed.
    """
    entries = sorted((str(file.relative_to(folder)), file.stat().st_size) for file in _files(folder))
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:_DIGITS]


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]
