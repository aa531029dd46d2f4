"""Figures of a bench: accuracy over the rounds, against the cost, and over a swept setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

from fedml_dapper.benches.fleet_time import over_time
from fedml_dapper.benches.grid import Variant
from fedml_dapper.benches.looks import Look, line_name, looks, ordered_looks
from fedml_dapper.benches.measures import Column, columns, headline, honest, in_round
from fedml_dapper.benches.results import BenchResults, VariantResults
from fedml_dapper.benches.statistics import Estimate
from fedml_dapper.benches.tables import AccuracyTable, CostRow, Tables
from fedml_dapper.evaluation.spending import time_unit
from fedml_dapper.evaluation.style import below_legend, canvas, label_once, label_rounds, markers, multiples

ACCURACY = "Top-1 accuracy (%)"
_BANDS = "line: mean over seeds; band: lowest to highest seed"
_DODGE = 0.025
"""Distance, as a share of the axis, between markers that would lie on each other."""
_LOG_FROM = 50
"""Ratio of a swept setting's largest to its smallest value from which on its axis is logarithmic."""


def subtitle(results: BenchResults, variants: Sequence[VariantResults] | None = None) -> str:
    """Return a line on what a figure was drawn from: data, seeds, profile."""
    counts = {len(variant.cells) for variant in (variants or results.finished)}
    fewest = min(counts)
    most = max(counts)
    seeds = f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds"
    return f"{results.data_label}, {seeds}, profile {results.profile}"


def learning_curves(results: BenchResults, best_so_far: bool = False) -> Figure:
    """Draw the headline accuracy round by round; ``best_so_far`` draws its running maximum, as the papers do.

    In a sweep every panel, and in it every series, has axes of its own.
    """
    column = headline(results.bench.statistic)
    heading = f"Learning curves: {column.heading}" + (", best round so far" if best_so_far else "")
    groups = _curve_groups(results)
    if len(groups) == 1:
        figure, only = canvas(heading, subtitle(results))
        grid = [only]
    else:
        figure, grid = multiples(heading, subtitle(results), len(groups), sharey=True)
    for axes, group in zip(grid, groups, strict=True):
        for name, look, variant in group.lines:
            _curve(axes, name, look, variant, column.key, best_so_far)
        label_rounds(axes, results.manifest.rounds, ACCURACY)
        if len(groups) > 1:
            axes.set_title(group.title, fontsize="medium")
    label_once(grid)
    if any(group.has_own_lines for group in groups) and len(groups) > 1:
        for axes, group in zip(grid, groups, strict=True):
            axes.legend(fontsize="x-small", title=group.axis, title_fontsize="x-small", ncols=2)
        figure.supxlabel(_BANDS, fontsize="small", color="0.3")
    else:
        _legend(figure, grid[0], _BANDS)
    return figure


def domain_curves(results: BenchResults) -> Figure:
    """Draw every column but the headline round by round, each on axes of its own."""
    shown = _other_columns(results)
    figure, grid = multiples("Learning curves in detail", subtitle(results), len(shown))
    appearance = looks(results)
    for axes, column in zip(grid, shown, strict=True):
        for variant in results.finished:
            _curve(axes, line_name(variant), appearance[line_name(variant)], variant, column.key)
        label_rounds(axes, results.manifest.rounds, ACCURACY)
        axes.set_title(column.heading, fontsize="medium")
    label_once(grid)
    _legend(figure, grid[0], _BANDS)
    return figure


def accuracy_over_time(results: BenchResults) -> Figure:
    """Draw the headline accuracy over the fleet's virtual time; a run keeps each value until its next test."""
    column = headline(results.bench.statistic)
    figure, axes = canvas(f"Over the fleet's time: {column.heading}", subtitle(results))
    appearance = looks(results)
    variants = results.finished
    curves = {v.label: [over_time(cell, column.key) for cell in v.cells.values()] for v in variants}
    scale, unit = time_unit(max(max(curve, default=0.0) for found in curves.values() for curve in found))
    for variant in variants:
        runs = [curve for curve in curves[variant.label] if curve]
        if not runs:
            continue
        times = sorted({at for curve in runs for at in curve if at >= max(min(each) for each in runs)})
        values = np.array([[curve[max(at for at in curve if at <= time)] for time in times] for curve in runs])
        look = appearance[line_name(variant)]
        shown = [time / scale for time in times]
        if len(runs) > 1:
            axes.fill_between(
                shown, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.1, linewidth=0, step="post"
            )
        axes.plot(
            shown,
            values.mean(axis=0),
            look.style,
            color=look.colour,
            label=line_name(variant),
            linewidth=look.width,
            zorder=look.above,
            drawstyle="steps-post",
        )
    axes.set_xlim(left=0)
    axes.set_xlabel(f"virtual time ({unit})")
    axes.set_ylabel(ACCURACY)
    axes.grid(alpha=0.3)
    _legend(figure, axes, _BANDS)
    return figure


def accuracy_against_cost(results: BenchResults, tables: Tables) -> Figure:
    """Draw one marker per variant: the headline accuracy against bytes up, and against the weakest client's MACs."""
    variants = [variant for variant in _one_panel(results) if _headline(tables.honest, variant, tables) is not None]
    figure, grid = multiples("Accuracy against cost", subtitle(results, variants), 2, height=3.9, sharey=True)
    costs = {row.label: row for row in tables.cost}
    sides: tuple[tuple[str, Callable[[CostRow], float]], ...] = (
        ("bytes up per client\nand round (MB)", lambda row: row.bytes_up / 1e6),
        ("MACs of the weakest client's\nmodel (millions an image)", lambda row: row.weakest.macs / 1e6),
    )
    appearance = looks(results)
    for axes, (unit, cost) in zip(grid, sides, strict=True):
        places = _dodged([cost(costs[variant.label]) for variant in variants])
        for place, variant in zip(places, variants, strict=True):
            accuracy = _headline(tables.honest, variant, tables)
            assert accuracy is not None
            name = line_name(variant)
            _point(axes, place, accuracy, appearance[name], name)
            if variant.variant.x is not None and name == line_name(
                results.reference
            ):  # labels of other lines would overlap these
                text = f"{variant.variant.x:g}"
                axes.annotate(text, (place, accuracy.mean), (5, 5), textcoords="offset points", fontsize="small")
        axes.set_xlabel(unit)
        _finish(axes)
        axes.set_xlim(0, 1.06 * max(*places, 1e-6))
    grid[0].set_ylabel(f"{ACCURACY}\n{honest(results).rule}")
    _legend(figure, grid[0], "bar: 95 % interval of the mean over seeds")
    return figure


def sweep_panels(results: BenchResults, tables: Tables) -> Figure:
    """Draw the headline accuracy over each swept setting, with a line per series and hollow published values."""
    swept = [variant for variant in results.finished if variant.variant.panel]
    panels = list(dict.fromkeys(variant.variant.panel for variant in swept if variant.variant.panel))
    numeric = all(variant.variant.x is not None for variant in swept)
    height = 2.9 if len(panels) > 1 else 3.6
    groups = panels if numeric else [None]
    figure, grid = multiples("Accuracy by setting", subtitle(results), len(groups), height=height, sharey=True)
    appearance = looks(results)
    for axes, panel in zip(grid, groups, strict=True):
        for place, name in enumerate(appearance):
            found = [v for v in swept if line_name(v) == name and panel in (None, v.variant.panel)]
            at = _positions([variant.variant for variant in found], panels, place - (len(appearance) - 1) / 2)
            _swept(axes, appearance[name], name, list(zip(at, found, strict=True)), tables, joined=numeric)
        axes.set_ylabel(ACCURACY)
        _finish(axes)
        if panel is None:
            axes.set_xticks(range(len(panels)), [name.replace(" ", "\n", 1) for name in panels])
        else:
            axes.set_xlabel(panel)
            _scale(axes, [v.variant.x for v in swept if v.variant.panel == panel and v.variant.x is not None])
    label_once(grid)
    legend = [f"filled: {tables.honest.rule}", "bar: 95 % interval"]
    if any(tables.headline in variant.variant.published for variant in results.finished):
        legend.append("hollow: published")
        if tables.statistic == "global":
            legend.append("dotted: best round")
    _legend(figure, grid[0], "; ".join(legend))
    return figure


@dataclass(frozen=True)
class _Group:
    """Curves on the same axes."""

    title: str
    axis: str
    lines: tuple[tuple[str, Look, VariantResults], ...]
    has_own_lines: bool
    """Whether its lines are not those of the other groups, so that it needs a legend of its own."""


def _curve_groups(results: BenchResults) -> list[_Group]:
    appearance = looks(results)
    places = dict.fromkeys(
        (variant.variant.panel, variant.variant.series if variant.variant.x is not None else None)
        for variant in results.finished
    )
    groups = []
    for panel, series in places:
        members = [v for v in results.finished if v.variant.panel == panel and series in (None, v.variant.series)]
        if series is None:
            lines = tuple((line_name(v), appearance[line_name(v)], v) for v in members)
        else:
            members.sort(key=lambda v: v.variant.x or 0.0)
            lines = tuple(
                (f"{v.variant.x:g}", look, v) for look, v in zip(ordered_looks(len(members)), members, strict=True)
            )
        several = len({name for _, name in places}) > 1
        title = series if series and several else panel or ""
        groups.append(_Group(title, panel or "", lines, series is not None))
    return groups


def _other_columns(results: BenchResults) -> tuple[Column, ...]:
    key = headline(results.bench.statistic).key
    return tuple(column for column in columns(results) if column.key != key)


def has_domain_curves(results: BenchResults) -> bool:
    """Whether there is more to draw than the headline, without a sweep's many lines."""
    return len(_other_columns(results)) > 1 and all(variant.variant.panel is None for variant in results.variants)


def has_cost_choice(results: BenchResults, tables: Tables) -> bool:
    """Whether variants differ in cost, so that accuracy can be weighed against it."""
    labels = {variant.label for variant in _one_panel(results)}
    rows = [row for row in tables.cost if row.label in labels]
    return len({(row.bytes_up, row.weakest.macs) for row in rows}) > 1


def _one_panel(results: BenchResults) -> list[VariantResults]:
    """Variants with comparable accuracies: without values on an axis, those of the reference's panel."""
    reference = results.reference.variant
    return [
        variant for variant in results.finished if reference.x is not None or variant.variant.panel == reference.panel
    ]


def _headline(table: AccuracyTable, variant: VariantResults, tables: Tables) -> Estimate | None:
    row = table.row(variant.label)
    entry = row.entries.get(tables.headline) if row else None
    return entry.estimate if entry else None


def _curve(axes: Axes, name: str, look: Look, variant: VariantResults, key: str, best_so_far: bool = False) -> None:
    runs = []
    for cell in variant.cells.values():
        measured = {record.round: in_round(record, key) for record in cell.rounds}
        runs.append({number: value for number, value in measured.items() if value is not None})
    numbers = sorted(set.intersection(*(set(run) for run in runs)))
    if not numbers:
        return
    values = np.array([[run[number] for number in numbers] for run in runs])
    if best_so_far:
        values = np.maximum.accumulate(values, axis=1)
    if len(runs) > 1:
        axes.fill_between(numbers, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.1, linewidth=0)
    place = markers(0, len(numbers)) | {"marker": look.marker, "markersize": 3.5}
    axes.plot(
        numbers,
        values.mean(axis=0),
        look.style,
        color=look.colour,
        label=name,
        linewidth=look.width,
        zorder=look.above,
        **place,
    )


def _point(axes: Axes, x: float, accuracy: Estimate, look: Look, name: str) -> Container:
    interval = accuracy.interval
    reach = None if interval is None else [[accuracy.mean - interval.low], [interval.high - accuracy.mean]]
    return axes.errorbar(
        [x],
        [accuracy.mean],
        reach,
        color=look.colour,
        marker=look.marker,
        markersize=7,
        linestyle="",
        capsize=2.5,
        elinewidth=1,
        label=name,
        zorder=look.above,
    )


def _swept(
    axes: Axes, look: Look, name: str, points: Sequence[tuple[float, VariantResults]], tables: Tables, joined: bool
) -> None:
    """Plot one series as measured and as published, and by the papers' statistic where that is another."""
    measured = [(x, it) for x, variant in points if (it := _headline(tables.honest, variant, tables))]
    for x, accuracy in measured:
        _point(axes, x, accuracy, look, name)
    if joined:
        axes.plot([x for x, _ in measured], [it.mean for _, it in measured], color=look.colour, linewidth=1.4)
    key = tables.headline
    published = [(x, v.variant.published[key].mean) for x, v in points if key in v.variant.published]
    hollow: dict[str, Any] = {"linestyle": "", "marker": look.marker, "markersize": 7, "markerfacecolor": "none"}
    axes.plot([x for x, _ in published], [mean for _, mean in published], color=look.colour, **hollow)
    if published and tables.statistic == "global":
        best = [(x, it.mean) for x, v in points if (it := _headline(tables.best, v, tables))]
        axes.plot([x for x, _ in best], [mean for _, mean in best], ":", color=look.colour)


def _positions(variants: Sequence[Variant], panels: Sequence[str], aside: float) -> list[float]:
    """Places on the setting's axis, or by panel; ``aside`` moves them so that the lines' bars do not overlap."""
    values = [variant.x for variant in variants if variant.x is not None]
    if len(values) < len(variants):
        return [panels.index(variant.panel or "") + 0.1 * aside for variant in variants]
    step = 0 if _is_logarithmic(values) else 0.015 * (max(values, default=0) - min(values, default=0))
    return [value + aside * step for value in values]


def _is_logarithmic(values: Sequence[float]) -> bool:
    return min(values, default=0) > 0 and max(values) > _LOG_FROM * min(values)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    ticks = sorted(set(values))
    room = 0.15 * (ticks[-1] - ticks[0])
    if _is_logarithmic(values):
        axes.set_xscale("log")
    elif all(after - before >= room for before, after in pairwise(ticks)):
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])


def _finish(axes: Axes) -> None:
    """Add a grid, and limit the axis to possible accuracies, as intervals of two seeds may be wide."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1), min(high, 101))
    axes.grid(alpha=0.3)


def _dodged(values: Sequence[float]) -> list[float]:
    """Move equal ``values`` side by side."""
    step = _DODGE * (max(values) or 1.0)
    placed = []
    for index, value in enumerate(values):
        alike = [other for other, second in enumerate(values) if abs(second - value) < step]
        placed.append(fmean(values[other] for other in alike) + (alike.index(index) - (len(alike) - 1) / 2) * step)
    return placed


def _legend(figure: Figure, axes: Axes, note: str) -> None:
    handles: dict[str, Any] = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        handles.setdefault(label, handle)
    below_legend(figure, list(handles.values()), list(handles), note)
