"""Grids of runs that take hours: each finished cell is a line of JSON, and what a file holds is not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.paired import say_progress
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.process.provenance import commit

CellT = TypeVar("CellT", bound=Hashable)
Figures = dict[str, Any]
"""What a cell came to, by name; its own fields among them."""


def read(output: Path) -> list[Figures]:
    """The cells of a file; none of one that is not there."""
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] if output.exists() else []


def run_missing(
    grid: Iterable[CellT],
    output: Path,
    run: Callable[[CellT, str | None], Figures],
    cell_of: Callable[[Mapping[str, Any]], CellT],
) -> list[Figures]:
    """Run what ``output`` does not hold yet of the ``grid``, in its order; returns all that is there then.

    ``run`` is given the commit too, and ``cell_of`` says of which cell its figures are.
    """
    found = read(output)
    known = {cell_of(figures) for figures in found}
    missing = [cell for cell in grid if cell not in known]
    output.parent.mkdir(parents=True, exist_ok=True)
    begun, made_by = time.perf_counter(), commit()
    for number, cell in enumerate(missing, start=1):
        found.append(run(cell, made_by))
        with written_whole(output) as whole:
            whole.write_text("".join(json.dumps(figures) + "\n" for figures in found), encoding="utf-8")
        say_progress(number, len(missing), begun)
    return found
