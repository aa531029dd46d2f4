"""A comparison of runs as a table for the terminal and as one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from fedml_dapper.evaluation.clock_figures import time_unit
from fedml_dapper.evaluation.comparison import ComparedRun, Comparison
from fedml_dapper.evaluation.page import environment, svg_uri, write_page
from fedml_dapper.evaluation.style import PALETTE, below_legend, canvas, markers
from fedml_dapper.evaluation.units import duration, quantity

_NONE = "\N{EN DASH}"


_HEADINGS = (
    "run", "method", "rounds", "last", "best", "by validation", "devices", "bytes", "wall clock", "virtual time",
    "energy",
)  # fmt: skip


def columns(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """What every run reached and what that cost, as text: by heading, one entry a run; without columns of dashes."""
    rows = [_row(each) for each in comparison.runs]
    found = {heading: tuple(row[place] for row in rows) for place, heading in enumerate(_HEADINGS)}
    return {heading: values for heading, values in found.items() if set(values) != {_NONE}}


def _row(each: ComparedRun) -> tuple[str, ...]:
    summary, metric = each.summary, each.run.metric
    overall, chosen, devices, clock = summary.global_accuracy, summary.chosen, summary.devices, summary.clock
    return (
        each.name,
        each.run.method,
        str(summary.rounds),
        _NONE if overall is None else metric.number(overall.last),
        _NONE if overall is None else metric.number(overall.best),
        _NONE if chosen is None else metric.number(chosen.global_accuracy),
        _NONE if devices is None or devices.accuracy is None else metric.number(devices.accuracy.last),
        quantity(each.bytes_sent[-1], "B") if each.rounds else _NONE,
        duration(each.wall_clock_s[-1]) if each.is_of_silos and each.rounds else _NONE,
        _NONE if clock is None else duration(clock.elapsed_s),
        _NONE if clock is None or clock.joules is None else quantity(clock.joules, "J"),
    )


def comparison_table(comparison: Comparison) -> Table:
    """A row per run."""
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
    """A row per setting in which the runs differ."""
    table = Table(title="Settings that differ")
    table.add_column("setting")
    for each in comparison.runs:
        table.add_column(escape(each.name))
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
            pictures=[(heading, svg_uri(figure)) for heading, figure in _figures(comparison)],
        )
    )
    write_page(path, html)


def _figures(comparison: Comparison) -> list[tuple[str, Figure]]:
    """The global model over every axis that all runs have."""
    runs = comparison.runs
    if not all(any(record.scores for record in each.rounds) for each in runs):
        return []
    figures = [
        ("rounds", _curves(comparison, "round", 1, lambda each: [record.round for record in each.rounds])),
        ("bytes", _curves(comparison, "megabytes both ways", 1e6, lambda each: each.bytes_sent)),
    ]
    if all(each.is_of_silos for each in runs):
        scale, unit = time_unit(max(each.wall_clock_s[-1] for each in runs))
        figures.append(
            ("wall clock", _curves(comparison, f"wall clock ({unit})", scale, lambda each: each.wall_clock_s))
        )
    if all(each.has_clock for each in runs):
        longest = max(each.summary.clock.elapsed_s for each in runs if each.summary.clock is not None)
        scale, unit = time_unit(longest)
        figures.append(("virtual time", _curves(comparison, f"virtual time ({unit})", scale, _elapsed)))
    return figures


def _elapsed(each: ComparedRun) -> list[float]:
    return [record.clock.elapsed_s for record in each.rounds if record.clock is not None]


def _curves(
    comparison: Comparison, label: str, scale: float, axis: Callable[[ComparedRun], list[int] | list[float]]
) -> Figure:
    metric = comparison.runs[0].run.metric
    figure, axes = canvas(f"{metric.name[:1].upper()}{metric.name[1:]} of the global model", "one line a run")
    lines = []
    for place, each in enumerate(comparison.runs):
        tested = [
            (x / scale, record.scores.global_accuracy)
            for x, record in zip(axis(each), each.rounds, strict=True)
            if record.scores is not None
        ]
        xs, ys = zip(*tested, strict=True)
        lines += axes.plot(xs, ys, color=_colour(place), linewidth=1.6, **markers(place, len(xs)))
    axes.set_xlim(left=0)
    if label == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_xlabel(label)
    axes.set_ylabel(replace(metric, name=f"{metric.name} on test data").title)
    below_legend(figure, lines, [each.name for each in comparison.runs], note="")
    return figure


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]
