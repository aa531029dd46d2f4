"""What a server draws of what a client trained on: the committed attacks of ``benchmarks.inversion``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.pictures.canvas import Picture

_FILE = Path(__file__).parents[2] / "results" / "attacks" / "inversion.jsonl"
_SEEDS = (1, 2)
_SIDE, _APART, _LEFT, _TOP = 92, 108, 24, 66
_UPLOADS: tuple[tuple[int, float | None, str], ...] = (
    (1, None, "level 1"),
    (5, None, "level 5"),
    (1, 0.001, "noise 0.001"),
    (1, 0.01, "noise 0.01"),
    (1, 0.1, "noise 0.1"),
)
"""Level, noise, and what stands above."""


def _attacks() -> list[dict[str, Any]]:
    found = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    return [attack for attack in found if attack["method"] == "dapperfl_slim"]


def picture() -> Picture:
    drawn = Picture(
        "What a server draws of a client's pictures",
        "Two rows of pictures. Of an upload after one step on two pictures the server draws what can be recognised, at"
        " level 1 as at level 5. With more noise it draws less. Of the sum over ten clients it draws less, too.",
        height=_TOP + len(_SEEDS) * _APART,
    )
    drawn.text(_LEFT, 22, "One client: what it trained on, and what is drawn of its upload", size=13, colour="soft")
    drawn.text(_LEFT + 6 * _APART + 12, 22, "Ten clients' sum: one of 20", size=13, colour="soft")
    columns = ["picture", *(name for _, _, name in _UPLOADS), "picture", "drawn"]
    for column, name in enumerate(columns):
        drawn.text(_x(column) + _SIDE / 2, 50, name, size=13, anchor="middle")
    for row, seed in enumerate(_SEEDS):
        attacks = {(one["seen"], one["level"], one["noise"]): one for one in _attacks() if one["seed"] == seed}
        uploads = [attacks["upload", level, noise]["pictures"] for level, noise, _ in _UPLOADS]
        total = attacks["sum", None, None]["pictures"]
        shown = [uploads[0]["trained on"], *(one["drawn"] for one in uploads), total["trained on"], total["drawn"]]
        for column, pictures in enumerate(shown):
            drawn.image(_x(column), _TOP + row * _APART, _SIDE, pictures[0])
    return drawn


def _x(column: int) -> float:
    return _LEFT + column * _APART + (12 if column >= len(_UPLOADS) + 1 else 0)
