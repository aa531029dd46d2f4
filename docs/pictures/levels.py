"""How good the model of each level is: the table of ``docs/devices.md``, read from that page."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from docs.pictures.canvas import Picture

_PAGE = Path(__file__).parents[1] / "devices.md"
_LEVELS = 5
_ROW, _TOP, _CELL = 58, 76, 104


def table() -> tuple[tuple[str, ...], list[tuple[str, tuple[float, ...]]]]:
    """The page's first table with a column a level: their names, and each row's name and figures in percent."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in _PAGE.read_text(encoding="utf-8").replace("| |", "| . |").splitlines()
        if line.startswith("|")
    ]
    start = next(number for number, row in enumerate(rows) if len(row) > 1 and row[1].startswith("level 1"))
    found = []
    for row in rows[start + 2 :]:
        cells = [cell.strip("*") for cell in row[1 : _LEVELS + 1]]
        if not all(re.fullmatch(r"\d+\.\d", cell) for cell in cells):
            break
        found.append((row[0].replace("`", ""), tuple(map(float, cells))))
    return tuple(rows[start][1 : _LEVELS + 1]), found


def picture() -> Picture:
    names, rows = table()
    drawn = Picture(
        "What the model of each level gets",
        "Test accuracy in percent on the embedded digits, one row a method and network, one column a level. "
        + " ".join(f"{name}: {', '.join(f'{value:g}' for value in values)}." for name, values in rows),
        height=_TOP + len(rows) * _ROW + 34,
    )
    for place, name in enumerate(names):
        head, _, ratio = name.partition("(")
        drawn.text(_left(place), 34, f"level {head.removeprefix('level').strip()}", size=15, bold=True)
        drawn.text(_left(place), 54, ratio.strip(")"), size=12, colour="soft")
    for number, (name, values) in enumerate(rows):
        top = _TOP + number * _ROW
        drawn.line((16, top - 8), (884, top - 8))
        drawn.lines(16, top + 14, *textwrap.wrap(name, 44)[:2], size=13)
        for place, value in enumerate(values):
            _cell(drawn, _left(place), top, value)
    drawn.text(16, _TOP + len(rows) * _ROW + 18, "Test accuracy in percent; a full bar is 100.", size=12, colour="soft")
    return drawn


def _cell(drawn: Picture, left: float, top: float, value: float) -> None:
    drawn.text(left, top + 14, f"{value:.1f}", size=15, bold=True)
    drawn.box(left, top + 22, _CELL - 14, 12, colour="soft", fill="line", round_by=0)
    drawn.box(left, top + 22, (_CELL - 14) * value / 100, 12, colour="blue", fill="full", round_by=0)


def _left(place: int) -> float:
    return 370 + place * _CELL
