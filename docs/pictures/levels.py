"""How good the model of each level is: a row a method and network, a column a level."""

from __future__ import annotations

import csv
import textwrap

from docs.pictures.canvas import Picture
from docs.pictures.summaries import RESULTS

_LEVELS = 5
_ROW, _TOP, _CELL = 58, 76, 104


Rows = list[tuple[str, tuple[float, ...]]]
"""Each row's name and figures in percent."""


def table(folder: str = "levels_on_digits", levels: int = _LEVELS) -> tuple[tuple[str, ...], Rows]:
    """The names of the levels, and the rows of ``levels.csv`` in a folder of results."""
    with (RESULTS / folder / "levels.csv").open(encoding="utf-8", newline="") as file:
        (_, *names), *rows = csv.reader(file)
    return tuple(names[:levels]), [(name, tuple(map(float, values[:levels]))) for name, *values in rows]


def picture() -> Picture:
    return of_table("What the model of each level gets", *table())


def of_adapters() -> Picture:
    return of_table("What each level gets of adapters", *table("adapters_on_digits", levels=3))


def of_table(title: str, names: tuple[str, ...], rows: Rows) -> Picture:
    drawn = Picture(
        title,
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
