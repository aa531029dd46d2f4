"""FedAvg, DapperFL and DapperFL+ in the settings that were run, and in the paper."""

from __future__ import annotations

from typing import NamedTuple

from docs.pictures.canvas import Colour, Picture
from docs.pictures.summaries import entry

_LEFT, _RIGHT, _TOP, _ROW = 320, 872, 74, 78
_LOWEST, _HIGHEST = 25, 75
_METHODS: dict[str, Colour] = {"FedAvg": "ink", "DapperFL": "green", "DapperFL+ (ours)": "orange"}


class Setting(NamedTuple):
    name: str
    note: str
    accuracy: dict[str, tuple[float, float]]
    """By method: percent, and the standard deviation over seeds, 0 for one seed."""


def settings() -> list[Setting]:
    """The paper's figures first, then what was run, from small to large."""
    small, large, drawn = "small/table2_drawn", "paper/table2", "paper/table2_drawn"
    on_card = "paper_on_h100/table2"
    published = {name: (entry(small, name, rule="best")["published"]["mean"], 0.0) for name in ("FedAvg", "DapperFL")}
    return [
        Setting("the paper", "published, best round", published),
        Setting("small", "three seeds, bars: deviation", {name: _reached(small, name) for name in _METHODS}),
        Setting("the paper's size", "public code's domains, one seed", {n: _reached(large, n) for n in _METHODS}),
        Setting(
            "the same on a GPU",
            "the same seed, an H100",
            {name: _reached(on_card, name) for name in ("FedAvg", "DapperFL")},
        ),
        Setting(
            "the paper's size",
            "domains drawn by the seed, one seed",
            {name: _reached(drawn, name) for name in ("FedAvg", "DapperFL")},
        ),
    ]


def _reached(bench: str, label: str) -> tuple[float, float]:
    estimate = entry(bench, label)["estimate"]
    return estimate["mean"], estimate["std"] or 0.0


def picture() -> Picture:
    rows = settings()
    spoken = " ".join(
        f"{row.name}, {row.note}: {', '.join(f'{name} {mean:.1f}' for name, (mean, _) in row.accuracy.items())}."
        for row in rows
    )
    drawn = Picture(
        "FedAvg and DapperFL on Office-Caltech10",
        f"Dots for test accuracy in percent, a row a setting. {spoken}",
        height=_TOP + len(rows) * _ROW + 40,
    )
    x = float(_LEFT)
    for name, colour in _METHODS.items():
        drawn.circle(x, 25, 7, colour=colour, fill="full")
        drawn.text(x + 14, 30, name, size=14, colour=colour)
        x += 160
    floor = _TOP + len(rows) * _ROW
    for mark in range(_LOWEST - _LOWEST % 10 + 10, _HIGHEST, 10):
        drawn.line((_place(mark), _TOP - 20), (_place(mark), floor), dashed=True)
        drawn.text(_place(mark), floor + 20, f"{mark} %", size=13, anchor="middle", colour="soft")
    for number, row in enumerate(rows):
        middle = _TOP + number * _ROW + 14
        drawn.text(16, middle - 4, row.name, size=16, bold=True)
        drawn.text(16, middle + 16, row.note, size=13, colour="soft")
        drawn.line((_LEFT, middle), (_RIGHT, middle))
        for name, (mean, deviation) in row.accuracy.items():
            below = name == "DapperFL+ (ours)"  # it lies close to FedAvg
            _dot(drawn, mean, deviation, middle + (7 if below else -7), 24 if below else -12, _METHODS[name])
    return drawn


def _dot(drawn: Picture, mean: float, deviation: float, y: float, text_at: float, colour: Colour) -> None:
    if deviation:
        drawn.line((_place(mean - deviation), y), (_place(mean + deviation), y), colour=colour, thick=2.5)
    drawn.circle(_place(mean), y, 6, colour=colour, fill="full")
    drawn.text(_place(mean), y + text_at, f"{mean:.1f}", size=13, anchor="middle", colour=colour)


def _place(percent: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * (percent - _LOWEST) / (_HIGHEST - _LOWEST)
