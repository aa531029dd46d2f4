"""A comparison of runs as a table for the terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from fedml_dapper.evaluation.chart import inline_svg
from fedml_dapper.evaluation.comparison import ComparedRun, Comparison
from fedml_dapper.evaluation.figures import on_test_data
from fedml_dapper.evaluation.page import environment, write_page
from fedml_dapper.evaluation.spending import Kind, axis
from fedml_dapper.evaluation.style import PALETTE, below_legend, markers, panel
from fedml_dapper.evaluation.units import duration, quantity

_NONE = "\N{EN DASH}"


_HEADINGS = (
    "run",
    "method",
    "rounds",
    "last",
    "best",
    "by validation",
    "devices",
    "bytes",
    "wall clock",
    "virtual time",
    "energy",
)


def columns(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """Return heading -> one text per run of what it reached and what that cost, without columns of dashes."""
    rows = [_row(each) for each in comparison.runs]
    found = {heading: tuple(row[place] for row in rows) for place, heading in enumerate(_HEADINGS)}
    return {heading: values for heading, values in found.items() if set(values) != {_NONE}}


def _row(each: ComparedRun) -> tuple[str, ...]:
    summary = each.summary
    metric = each.run.metric
    overall = summary.global_accuracy
    chosen = summary.chosen
    devices = summary.devices
    clock = summary.clock
    return (
        each.name,
        each.run.method,
        str(summary.rounds),
        _NONE if overall is None else metric.number(overall.last),
        _NONE if overall is None else metric.number(overall.best),
        _NONE if chosen is None else metric.number(chosen.global_accuracy),
        _NONE if devices is None or devices.accuracy is None else metric.number(devices.accuracy.last),
        _last(each.spent("bytes"), lambda value: quantity(value, "B")),
        _last(each.spent("wall clock"), duration),
        _NONE if clock is None else duration(clock.elapsed_s),
        _NONE if clock is None or clock.joules is None else quantity(clock.joules, "J"),
    )


def _last(values: list[float] | None, written: Callable[[float], str]) -> str:
    return written(values[-1]) if values else _NONE


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row per run."""
    metric = comparison.runs[0].run.metric
    table = Table(title=escape(f"{metric.title} of the global model, and what it cost"))
    found = columns(comparison)
    for place, heading in enumerate(found):
        table.add_column(heading, justify="left" if place < 2 else "right")
    for row in zip(*found.values(), strict=True):
        table.add_row(*map(escape, row))
    if not comparison.same_data:
        table.caption = "not all on the same data: their figures do not compare"
    return table


def difference_table(comparison: Comparison) -> Table:
    """Return a table with a row per setting in which the runs differ."""
    table = Table(title="Settings that differ")
    table.add_column("setting", overflow="fold")
    for each in comparison.runs:
        table.add_column(escape(each.name), overflow="fold")
    for key, values in comparison.differences.items():
        table.add_row(escape(key), *map(escape, values))
    return table


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page to ``path``; an older file there stays until the new one is complete."""
    found = columns(comparison)
    html = (
        environment(__package__)
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            metric=comparison.runs[0].run.metric,
            headings=list(found),
            rows=list(zip(*found.values(), strict=True)),
            colours=[_colour(place) for place in range(len(comparison.runs))],
            levels=_measured_levels(comparison),
            pictures=[(heading, inline_svg(figure)) for heading, figure in _figures(comparison)],
        )
    )
    write_page(path, html)


def _measured_levels(comparison: Comparison) -> list[int]:
    """Levels whose models were measured in some run."""
    measured = [each.summary.devices.last.sent for each in comparison.runs if each.summary.devices is not None]
    return sorted({figures.level for sent in measured for figures in sent.levels})


def _figures(comparison: Comparison) -> list[tuple[str, Figure]]:
    """Charts of the global model over every axis that all runs have."""
    runs = comparison.runs
    if not all(any(record.scores for record in each.rounds) for each in runs):
        return []
    figures = [("rounds", _curves(comparison, "round", [[record.round for record in each.rounds] for each in runs]))]
    for kind in get_args(Kind):
        each_spent = [values for each in runs if (values := each.spent(kind))]
        if len(each_spent) == len(runs):
            scale, label = axis(kind, max(values[-1] for values in each_spent))
            scaled = [[value / scale for value in values] for values in each_spent]
            figures.append((kind, _curves(comparison, label, scaled)))
    return figures


def _curves(comparison: Comparison, label: str, places: Sequence[Sequence[float]]) -> Figure:
    figure, axes = panel()
    lines = []
    for number, (each, xs) in enumerate(zip(comparison.runs, places, strict=True)):
        tested = [(x, r.scores.global_accuracy) for x, r in zip(xs, each.rounds, strict=True) if r.scores is not None]
        look = markers(number, len(tested))
        lines += axes.plot(*zip(*tested, strict=True), color=_colour(number), linewidth=1.6, **look)
    axes.set_xlim(left=0)
    if label == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_xlabel(label)
    axes.set_ylabel(on_test_data(comparison.runs[0].run.metric))
    below_legend(figure, lines, [each.name for each in comparison.runs])
    return figure


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]
