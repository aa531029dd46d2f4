"""What the committed benches reached, from their summaries: for pictures, and for the test of what pages say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results"


@cache
def summary(bench: str) -> dict[str, Any]:
    """The summary of a bench, e.g. of ``small/slim``."""
    found: dict[str, Any] = json.loads((RESULTS / bench / "summary.json").read_text(encoding="utf-8"))
    return found


def entry(bench: str, label: str, *, column: str = "global", rule: str = "honest") -> dict[str, Any]:
    """One variant's accuracy in percent: ``estimate``, ``values`` by seed, ``published``, ``difference``.

    ``rule`` is ``honest``, for the round chosen on validation images, or ``best``.
    """
    rows = summary(bench)[rule]["rows"]
    found: dict[str, Any] = next(row for row in rows if row["label"] == label)["entries"][column]
    return found


def named(bench: str, table: str, label: str) -> dict[str, Any]:
    """The row of another table of the summary: ``devices``, ``gap``, ``times``."""
    found: dict[str, Any] = next(row for row in summary(bench)[table] if row["label"] == label)
    return found
