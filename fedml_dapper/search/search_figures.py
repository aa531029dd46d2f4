"""Figures of a hyper-parameter search, drawn from its record alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedml_dapper.evaluation.style import PALETTE, canvas, multiples, names_as_text
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.search.record import SearchPlan, SearchRecord, Trial
from fedml_dapper.search.trials import START_POINTS, importances

_ACCURACY = "Top-1 accuracy on\nvalidation images (%)"
_BEST: dict[str, Any] = {
    "marker": "*",
    "s": 170,
    "color": PALETTE[1],
    "edgecolors": "black",
    "linewidths": 0.6,
    "zorder": 3,
}
_FORMATS = ("png", "pdf")


def save_figures(record: SearchRecord, folder: Path) -> list[Path]:
    """Draw all figures that ``record`` allows into ``folder``, each as PNG and PDF; return the files."""
    figures: dict[str, Figure] = {}
    if record.ranking:
        figures["history"] = history(record)
        figures["parameters"] = parameter_panels(record)
    shares = importances(record)
    if shares:
        figures["importances"] = importance_bars(record, shares)
    files = [folder / f"{name}.{kind}" for name in figures for kind in _FORMATS]
    for file in files:
        with names_as_text(figures[file.stem]), written_whole(file) as scratch:
            figures[file.stem].savefig(scratch, dpi=200)
    return files


def history(record: SearchRecord) -> Figure:
    """Draw the trials' validation accuracies in order, and the best so far; a trial counts with its best round."""
    figure, axes = canvas("Validation accuracy of the trials", _subtitle(record))
    finished = sorted(record.ranking, key=lambda trial: trial.number)
    start = [trial for trial in finished if trial.number <= START_POINTS]
    later = [trial for trial in finished if trial.number > START_POINTS]
    _scatter(axes, start, label="quasi-random start", facecolors="none", edgecolors=PALETTE[0])
    _scatter(axes, later, label=f"chosen by the sampler ({record.plan.sampler.upper()})", color=PALETTE[0])
    pruned = [trial for trial in record.trials if trial.state == "pruned"]
    _scatter(axes, pruned, label="stopped early, best until then", marker="x", color="0.5")
    numbers = [trial.number for trial in finished]
    best = list(accumulate((trial.validation_accuracy for trial in finished), max))
    last = record.measured[-1].number
    axes.step([*numbers, last], [*best, best[-1]], where="post", color=PALETTE[1], label="best so far", linewidth=1.8)
    axes.set_xlim(0.5, last + 0.5)
    axes.set_xlabel("trial")
    axes.set_ylabel(_ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def parameter_panels(record: SearchRecord) -> Figure:
    """Draw one panel per searched setting: its value, in all of its range, against accuracy; late trials are dark."""
    ranges = record.plan.ranges
    figure, panels = multiples(
        "Validation accuracy by setting", _subtitle(record), len(ranges), height=2.6, sharey=True
    )
    finished = sorted(record.ranking, key=lambda trial: trial.number)
    best = record.ranking[0]
    for place, ((name, range_), axes) in enumerate(zip(ranges.items(), panels, strict=True)):
        points = axes.scatter(
            [trial.params[name] for trial in finished],
            [trial.validation_accuracy for trial in finished],
            c=[trial.number for trial in finished],
            cmap="viridis_r",
            vmin=1,
            vmax=max(finished[-1].number, 2),
            s=24,
        )
        axes.scatter(best.params[name], best.validation_accuracy, label=f"trial {best.number}, the best", **_BEST)
        if range_.log:
            axes.set_xscale("log")
        axes.update_datalim([(bound, best.validation_accuracy) for bound in (range_.low, range_.high)])
        axes.autoscale_view()
        axes.set_xlabel(f"{name} (log scale)" if range_.log else name)
        if place % 2 == 0:
            axes.set_ylabel(_ACCURACY)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    bar = figure.colorbar(points, ax=panels, label="trial", shrink=0.8)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)
    return figure


def importance_bars(record: SearchRecord, shares: dict[str, float]) -> Figure:
    """Draw how much of the accuracy's variance over the ranges each setting explains."""
    figure, axes = canvas("Importance of the settings", _subtitle(record), height=1.6 + 0.4 * len(shares))
    bars = axes.barh(list(shares), [100 * share for share in shares.values()], color=PALETTE[0], height=0.6)
    axes.bar_label(bars, fmt="%.0f %%", padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("share of the accuracy's variance (%, fANOVA)")
    axes.set_ylabel("setting")
    return figure


def describe(plan: SearchPlan) -> str:
    """Return a line on what was searched, with its seeds."""
    return f"{plan.method} on {plan.suite}, {count(plan.seeds, 'seed')} ({', '.join(map(str, plan.seeds))})"


def count(items: Sequence[object], noun: str) -> str:
    """Count things in words: ``1 trial``, ``2 trials``."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _subtitle(record: SearchRecord) -> str:
    return f"{describe(record.plan)}, {count(record.measured, 'trial')}"


def _scatter(axes: Axes, trials: list[Trial], **looks: Any) -> None:
    if trials:
        axes.scatter([trial.number for trial in trials], [trial.validation_accuracy for trial in trials], s=26, **looks)
