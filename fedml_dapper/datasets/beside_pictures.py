"""Which pictures are data, and which folders beside them are not: what programs leave, and results of our own."""

from __future__ import annotations

import os
from pathlib import Path

from fedml_dapper.datasets.picture_files import is_picture

_LEFT_BY_PROGRAMS = ("__MACOSX", "__pycache__")
"""What unpacking an archive leaves, and loading the file of a network."""
_OF_RUNS = frozenset({"ledger.jsonl", "ledger.jsonl.xz", "settings.yaml"})
"""Files that a run writes into its folder, also where it ended before its first round."""
_OF_DEVICES = frozenset({"memory.safetensors", "model.safetensors", "answer.safetensors"})
"""Files that a silo or device keeps of a run, one of which is an export's, too."""
_WITH_FIGURES = frozenset({"bench.json", "journal.log"})
"""Files of a bench and of a search, whose folders have figures that are no pictures to learn from."""


def is_no_data(folder: Path) -> bool:
    """Whether ``folder`` is hidden, left by a program, or holds results and no pictures, as ``output_dir`` does."""
    return folder.name.startswith((".", *_LEFT_BY_PROGRAMS)) or _holds_results(folder)


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in ``folder``, sorted, but for those in folders below it that are no data."""
    found = list[Path]()
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not is_no_data(Path(place, name))]
        found.extend(file for name in files if is_picture(file := Path(place, name)))
    return sorted(found)


def _holds_results(folder: Path) -> bool:
    found = False
    for place, below, files in os.walk(folder):
        if below and not _WITH_FIGURES.isdisjoint(files):  # a class has no folders below
            found = True
            below.clear()
        elif any(is_picture(Path(place, name)) for name in files):
            return False
        else:
            found |= not (_OF_RUNS | _OF_DEVICES | _WITH_FIGURES).isdisjoint(files)
    return found
