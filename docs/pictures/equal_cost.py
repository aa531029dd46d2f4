"""What methods make of equal budgets of training, beside FedAvg, suite by suite."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from docs.pictures.canvas import Picture
from docs.pictures.summaries import entry, named, summary

SUITES = {
    "small/budgets_office": "Office-Caltech10",
    "small/budgets_digits": "digits",
    "small/budgets_cifar": "CIFAR-10 (subset)",
}
"""Benches with the names of their data."""
NAMES = {
    "smallest for all": "smallest network for all",
    "DapperFL-slim": "dapperfl_slim",
}
"""Labels of variants whose name on the pages is another."""
_WEAKEST = "4"
_LEFT, _RIGHT, _TOP, _ROW, _BETWEEN = 210, 884, 96, 24, 28
_LOWEST, _HIGHEST = -26, 9


def is_judged(bench: str, label: str) -> bool:
    """Whether the bench's statistic says what the variant comes to.

    ProFL's network is whole in its last step alone. Without validation images it is the mean of five rounds.
    """
    return (bench, label) != ("small/budgets_cifar", "ProFL")


class Row(NamedTuple):
    """One variant on one suite, in points from FedAvg."""

    mean: float
    low: float
    high: float
    weakest: float | None
    """Points of the model that the weakest level's devices run; None where they run none of their own."""


def row(bench: str, label: str) -> Row:
    """The variant's global accuracy minus FedAvg's, with its paired 95 % interval."""
    difference = entry(bench, label)["difference"]
    interval = difference["interval"]
    own = named(bench, "devices", label)["sent"].get(_WEAKEST)
    fedavg = entry(bench, "FedAvg")["estimate"]["mean"]
    return Row(
        mean=difference["mean"],
        low=interval["low"],
        high=interval["high"],
        weakest=None if own is None else own["mean"] - fedavg,
    )


def labels() -> list[str]:
    """Variants beside FedAvg, best first on the mean over suites."""
    first = next(iter(SUITES))
    found = [one["label"] for one in summary(first)["honest"]["rows"] if one["label"] != "FedAvg"]
    return sorted(
        found, key=lambda label: -fmean(row(bench, label).mean for bench in SUITES if is_judged(bench, label))
    )


def picture() -> Picture:
    ordered = labels()
    spoken = " ".join(
        f"{data}: {', '.join(f'{_name(one)} {row(bench, one).mean:+.1f}' for one in ordered if is_judged(bench, one))}."
        for bench, data in SUITES.items()
    )
    drawn = Picture(
        "Methods at equal cost of training",
        f"A row a method, a dot for its points of test accuracy beyond FedAvg's, bars for 95 % intervals. {spoken}",
        height=_TOP + len(ordered) * _ROW + 40,
    )
    drawn.circle(_LEFT + 7, 21, 5, colour="blue", fill="full")
    drawn.text(_LEFT + 20, 26, "global model, with its paired 95 % interval", size=13)
    drawn.circle(_LEFT + 357, 21, 5, colour="orange", fill="tint")
    drawn.text(_LEFT + 370, 26, "the weakest level's own model", size=13)
    for number, label in enumerate(ordered):
        middle = _middle(number)
        drawn.text(_LEFT - 12, middle + 5, _name(label), size=14, anchor="end", bold=label == "smallest for all")
    for number, (bench, data) in enumerate(SUITES.items()):
        _panel(drawn, number, bench, data, ordered)
    return drawn


def _panel(drawn: Picture, number: int, bench: str, data: str, ordered: list[str]) -> None:
    width = (_RIGHT - _LEFT + _BETWEEN) / len(SUITES) - _BETWEEN
    left = _LEFT + number * (width + _BETWEEN)

    def place(points: float) -> float:
        return left + width * (points - _LOWEST) / (_HIGHEST - _LOWEST)

    floor = _TOP + len(ordered) * _ROW
    drawn.text(left, _TOP - 36, data, size=15, bold=True)
    drawn.text(place(0), _TOP - 14, "FedAvg", size=12, anchor="middle", colour="soft")
    for mark in range(-20, _HIGHEST, 10):
        drawn.line((place(mark), _TOP - 8), (place(mark), floor), dashed=mark != 0)
        drawn.text(place(mark), floor + 18, f"{mark:+d}" if mark else "0", size=12, anchor="middle", colour="soft")
    for line, label in enumerate(ordered):
        if not is_judged(bench, label):
            continue
        middle = _middle(line)
        found = row(bench, label)
        low, high = (min(max(end, _LOWEST), _HIGHEST) for end in (found.low, found.high))
        drawn.line((place(low), middle), (place(high), middle), colour="blue", thick=2)
        if found.weakest is not None and found.weakest >= _LOWEST:
            drawn.circle(place(found.weakest), middle, 5, colour="orange", fill="tint")
        drawn.circle(place(found.mean), middle, 5, colour="blue", fill="full")


def _middle(number: int) -> float:
    return _TOP + number * _ROW + _ROW / 2


def _name(label: str) -> str:
    return NAMES.get(label, label)
