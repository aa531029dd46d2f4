"""Accuracy over a fleet's virtual time: the committed runs of the bench ``fleet``, means over seeds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.benches.fleet_time import over_time
from fedml_dapper.benches.results import VariantResults, load_results

_BENCH = Path(__file__).parents[2] / "results" / "small" / "fleet"
_LINES: dict[str, tuple[Colour, bool]] = {
    "FedAvg without limits": ("soft", True),
    "FedAvg on those that can": ("ink", False),
    "smallest for all": ("orange", False),
    "HeteroFL": ("purple", False),
    "DapperFL": ("green", False),
    "DapperFL-slim": ("blue", False),
}
"""Colour by variant, and whether it is dashed."""
_LEFT, _RIGHT, _FLOOR, _TOP = 62, 660, 366, 44
_STEPS = 120
_APART = 20
"""Pixels between the names of lines at least."""


def curve(variant: VariantResults, end_s: float) -> list[tuple[float, float]]:
    """Virtual seconds and percent, the mean over seeds of what was tested last, from when all seeds have a test."""
    seeds = [over_time(cell, "global") for cell in variant.cells.values()]
    times = [end_s * step / _STEPS for step in range(_STEPS + 1)]
    last = min(end_s, max(max(seed) for seed in seeds))
    return [
        (at, fmean(max((when, value) for when, value in seed.items() if when <= at)[1] for seed in seeds))
        for at in times
        if max(min(seed) for seed in seeds) <= at <= last
    ]


def picture() -> Picture:
    results = load_results(_BENCH)
    # the dashed line is what no device has time for: it may leave the picture
    end_s = max(max(over_time(cell, "global")) for name, (_, away) in _LINES.items() if not away
                for cell in results[name].cells.values())  # fmt: skip
    curves = {name: curve(results[name], end_s) for name in _LINES}
    seeds = max(len(results[name].cells) for name in _LINES)
    ends = ", ".join(f"{name} {points[-1][1]:.0f} %" for name, points in curves.items())
    drawn = Picture(
        "Accuracy over virtual time on a fleet of unequal devices",
        f"Lines of global test accuracy, means over {seeds} seeds, 20 clients with four kinds of devices. At the end of"
        f" the picture: {ends}.",
        height=430,
    )
    highest = 10 * (int(max(value for points in curves.values() for _, value in points)) // 10 + 1)

    def place(at: float, value: float) -> tuple[float, float]:
        return _LEFT + (_RIGHT - _LEFT) * at / end_s, _FLOOR - (_FLOOR - _TOP) * value / highest

    drawn.text(16, 26, "Global test accuracy, %", size=13, colour="soft")
    for mark in range(0, highest + 1, 10):
        _, y = place(0, mark)
        drawn.line((_LEFT, y), (_RIGHT, y), dashed=mark > 0)
        drawn.text(_LEFT - 8, y + 5, str(mark), size=13, anchor="end", colour="soft")
    for seconds in range(0, int(end_s) + 1, 60 if end_s > 200 else 30):
        x, _ = place(seconds, 0)
        drawn.text(x, _FLOOR + 20, f"{seconds}", size=13, anchor="middle", colour="soft")
    drawn.text(_RIGHT, _FLOOR + 42, "virtual seconds", size=13, anchor="end", colour="soft")
    below = float(_TOP - _APART)
    for name, points in sorted(curves.items(), key=lambda item: -item[1][-1][1]):
        colour, dashed = _LINES[name]
        drawn.line(*(place(*point) for point in points), colour=colour, dashed=dashed, thick=2)
        x, y = place(*points[-1])
        below = max(y + 5, below + _APART)
        drawn.text(_RIGHT + 12, below, f"{name} {points[-1][1]:.0f}", size=13, colour=colour)
        if x < _RIGHT - 4:
            drawn.line((x, y), (_RIGHT + 8, below - 4), dashed=True)
    return drawn
