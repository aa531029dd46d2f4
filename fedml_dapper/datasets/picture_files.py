"""Which files are pictures, by their names."""

from __future__ import annotations

from pathlib import Path

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp"})
"""Ends of the names of pictures in published suites."""
SUFFIXES = PICTURE_SUFFIXES | {".tif", ".tiff", ".gif"}
"""Ends of the names of a user's own pictures."""


def is_picture(file: Path) -> bool:
    """Whether ``file`` is a picture, by its name; so is a link that leads nowhere, which reading finds damaged."""
    is_named_so = file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    return is_named_so and (file.is_file() or (file.is_symlink() and not file.exists()))
