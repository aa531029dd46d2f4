"""What two hostile clients of ten cost: the committed runs of ``benchmarks.attacks`` in the small quickstart."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

from docs.pictures.canvas import Colour, Picture

_FILE = Path(__file__).parents[2] / "results" / "attacks" / "quickstart_small.jsonl"
_LEVELS = (1, 3, 5)
_HOSTILE = 2
_ATTACKS = (
    ("sign_flip", "Send the opposite"),
    ("times_-4", "Send -4 times their change"),
    ("label_flip", "Train on other labels"),
    ("backdoor", "Train on stamped images"),
)
DEFENCES: tuple[tuple[str, Colour], ...] = (("mean", "soft"), ("median", "orange"), ("screened_mean", "blue"))
_TOP, _ROW, _BAR, _LEFT, _COLUMN = 96, 84, 20, 250, 216


def accuracy(attack: str, level: int, defence: str, hostile: int = _HOSTILE) -> float:
    """Percent after the last round, mean over seeds; ``none`` is of level 0, with 0 ``hostile`` clients."""
    runs = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    key = (attack, level, hostile, defence)
    names = ("attack", "level", "attackers", "defence")
    return mean(float(run["accuracy"][-1]) for run in runs if tuple(run[name] for name in names) == key)


def picture() -> Picture:
    found = {
        (attack, level): [accuracy(attack, level, defence) for defence, _ in DEFENCES]
        for attack, _ in _ATTACKS
        for level in _LEVELS
    }
    spoken = [
        f"{words}, level {level}: {', '.join(f'{value:.0f}' for value in found[attack, level])}."
        for attack, words in _ATTACKS
        for level in _LEVELS
    ]
    untouched = accuracy("none", 0, "mean", 0)
    drawn = Picture(
        "What two hostile clients of ten cost",
        f"Accuracy of the global model in percent under mean, median and screened mean; {untouched:.0f} where nobody"
        f" attacks. {' '.join(spoken)}",
        height=_TOP + len(_ATTACKS) * _ROW + 20,
    )
    drawn.text(16, 28, "Two hostile clients", size=15, bold=True)
    drawn.lines(16, 50, "Accuracy, %. The line is the", "mean where nobody attacks.", size=12, colour="soft")
    for column, level in enumerate(_LEVELS):
        drawn.text(_LEFT + column * _COLUMN, 28, f"both of level {level}", size=15, bold=True)
    for place, (defence, colour) in enumerate(DEFENCES):
        drawn.box(_LEFT + place * 150, 50, 14, 14, colour=colour, fill="full", round_by=2)
        drawn.text(_LEFT + place * 150 + 22, 62, defence.replace("_", " "), size=13)
    for row, (attack, words) in enumerate(_ATTACKS):
        top = _TOP + row * _ROW
        drawn.line((16, top - 12), (884, top - 12))
        drawn.text(16, top + 14, words, size=14)
        for column, level in enumerate(_LEVELS):
            _bars(drawn, _LEFT + column * _COLUMN, top, found[attack, level], untouched)
    return drawn


def _bars(drawn: Picture, left: float, top: float, values: list[float], untouched: float) -> None:
    full = _COLUMN - 50
    for place, (value, (_, colour)) in enumerate(zip(values, DEFENCES, strict=True)):
        height = top + place * _BAR
        drawn.box(left, height, full * value / 100, _BAR - 5, colour=colour, fill="full", round_by=0)
        drawn.text(left + full * max(value, untouched) / 100 + 6, height + 12, f"{value:.0f}", size=12)
    drawn.line(*[(left + full * untouched / 100, y) for y in (top - 4, top + 3 * _BAR - 1)], colour="ink", dashed=True)
