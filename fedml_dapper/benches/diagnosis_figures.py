"""Figures of final models: by capability level, confusions, representations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import pi

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.projections.polar import PolarAxes

from fedml_dapper.benches.bench_figures import ACCURACY, subtitle
from fedml_dapper.benches.diagnosis import Diagnosis, Embedding
from fedml_dapper.benches.looks import line_name, looks
from fedml_dapper.benches.results import BenchResults, VariantResults
from fedml_dapper.benches.tables import Tables
from fedml_dapper.evaluation.style import MARKERS, SHARES, below_legend, multiples

_LEGEND_CLASSES = 20
_SPOKES = 3


def diagnosed(variant: VariantResults) -> list[tuple[int, Diagnosis]]:
    """Return the variant's diagnoses, each with its seed."""
    return [(seed, cell.diagnosis) for seed, cell in variant.cells.items() if cell.diagnosis is not None]


def has_confusions(variant: VariantResults) -> bool:
    """Whether the variant has diagnoses, which say what is taken for what."""
    return any(diagnosis.confusion for _, diagnosis in diagnosed(variant))


def has_level_radar(tables: Tables) -> bool:
    """Whether some variant has all levels, and these are enough for a radar.

    The variants of a fleet may differ in their levels.
    """
    levels = {row.level for row in tables.levels}
    labels = {row.label for row in tables.levels}
    return len(levels) >= _SPOKES and any(
        {row.level for row in tables.levels if row.label == label} == levels for label in labels
    )


def level_radar(results: BenchResults, tables: Tables) -> Figure:
    """Draw the accuracy of clients' own models, a spoke per capability level, of variants that have all levels."""
    levels = {row.level for row in tables.levels}
    figure, (axes,) = multiples(
        "Own models by capability level", subtitle(results), 1, height=4.6, subplot_kw={"projection": "polar"}
    )
    assert isinstance(axes, PolarAxes)
    angles = [2 * pi * place / len(levels) for place in range(len(levels))]
    appearance = looks(results)
    lowest = 100.0
    for variant in results.finished:
        means = {row.level: row.after.mean for row in tables.levels if row.label == variant.label}
        if means.keys() != levels:
            continue
        values = [means[level] for level in sorted(levels)]
        name = line_name(variant)
        look = appearance[name]
        lowest = min(lowest, *values)
        axes.plot(
            [*angles, angles[0]],
            [*values, values[0]],
            look.style,
            color=look.colour,
            marker=look.marker,
            markersize=4,
            linewidth=look.width,
            label=name,
            zorder=look.above,
        )
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [_spoke(level, results.level_ratios.get(level)) for level in sorted(levels)])
    axes.tick_params(axis="x", pad=14)
    axes.set_ylim(bottom=max(0.0, 10 * np.floor(lowest / 10) - 10))
    axes.set_rlabel_position(180 / len(levels))
    handles, names = axes.get_legend_handles_labels()
    below_legend(figure, handles, names, f"{ACCURACY} after a last local round, mean over seeds")
    return figure


def _spoke(level: int, ratio: float | None) -> str:
    return f"level {level}" if ratio is None else f"level {level}\n(ratio {ratio:g})"


def confusion_matrices(results: BenchResults, variant: VariantResults) -> Figure:
    """Draw which class is taken for which, per domain, summed over seeds."""
    diagnoses = [diagnosis for _, diagnosis in diagnosed(variant)]
    domains = list(diagnoses[0].confusion)
    figure, grid = multiples(f"Confusions of {variant.label}", subtitle(results, [variant]), len(domains), height=2.5)
    for axes, domain in zip(grid, domains, strict=True):
        counts = np.sum([diagnosis.confusion[domain] for diagnosis in diagnoses], axis=0)
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        mesh = axes.pcolormesh(shares, cmap=SHARES, vmin=0, vmax=100, edgecolors="0.9", linewidth=0.2)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        ticks = range(0, len(shares), max(1, len(shares) // 10))
        names = [results.class_name(tick) for tick in ticks]
        axes.set_xticks([tick + 0.5 for tick in ticks], names, rotation=90, fontsize="x-small")
        axes.set_yticks([tick + 0.5 for tick in ticks], names, fontsize="x-small")
        images = counts.sum() // len(diagnoses)
        axes.set_title(f"{domain} ({images} images)", fontsize="medium")
        axes.set_xlabel("predicted class", fontsize="small")
        axes.set_ylabel("true class", fontsize="small")
    figure.colorbar(mesh, ax=grid, label="share of the true class (%)", shrink=0.6)
    return figure


def embeddings(results: BenchResults, variants: Sequence[VariantResults]) -> Figure:
    """Draw representations of test images in two dimensions, for one seed of each variant."""
    shown = [(variant, *_embedded(variant)[0]) for variant in variants]
    figure, grid = multiples(
        "Representations of test images (t-SNE)",
        f"{results.data_label}, 1 seed, profile {results.profile}",
        len(shown),
        height=3.2,
    )
    classes = sorted({label for *_, embedding in shown for label in embedding.label})
    colours = _class_colours(classes)
    for axes, (variant, seed, embedding) in zip(grid, shown, strict=True):
        _scatter(axes, embedding, colours)
        axes.set_title(f"{variant.label}\nseed {seed}", fontsize="medium")
        axes.set_xlabel("t-SNE 1 (no unit)", fontsize="small")
        axes.set_ylabel("t-SNE 2 (no unit)", fontsize="small")
    handles = [
        Line2D([], [], linestyle="", color="0.3", marker=_marker(place), label=domain)
        for place, domain in enumerate(shown[0][-1].domains)
    ]
    if len(classes) <= _LEGEND_CLASSES:
        handles += [
            Line2D([], [], linestyle="", color=colours[label], marker="o", label=results.class_name(label))
            for label in classes
        ]
    below_legend(figure, handles, [str(handle.get_label()) for handle in handles], "colour: class; marker: domain")
    return figure


def embedded_pair(results: BenchResults, tables: Tables) -> list[VariantResults]:
    """Return the reference and, beside it, FedAvg or else the most accurate other variant, if they have embeddings."""
    reference = results.reference
    others = [v for v in results.finished if v.label != reference.label and v.variant.panel == reference.variant.panel]
    others = [v for v in others if _embedded(v)]
    averaged = [v for v in others if v.variant.method == "fedavg"]
    ranked = sorted(others, key=lambda v: -_mean(tables, v.label))
    return [v for v in (reference, *(averaged or ranked)[:1]) if _embedded(v)]


def _embedded(variant: VariantResults) -> list[tuple[int, Embedding]]:
    """The variant's embeddings, each with its seed."""
    return [(seed, found.embedding) for seed, found in diagnosed(variant) if found.embedding is not None]


def _mean(tables: Tables, label: str) -> float:
    row = tables.honest.row(label)
    return row.entries[tables.headline].estimate.mean if row and tables.headline in row.entries else 0.0


def _scatter(axes: Axes, embedding: Embedding, colours: Sequence[str]) -> None:
    for place in range(len(embedding.domains)):
        points = [index for index, domain in enumerate(embedding.domain) if domain == place]
        axes.scatter(
            [embedding.x[index] for index in points],
            [embedding.y[index] for index in points],
            s=12,
            alpha=0.75,
            c=[colours[embedding.label[index]] for index in points],
            marker=_marker(place),
            linewidths=0,
        )
    axes.set_xticks([])
    axes.set_yticks([])


def _class_colours(labels: Collection[int]) -> list[str]:
    """Colours by label, which repeat after 20 classes."""
    name, colours = ("tab10", 10) if max(labels) < 10 else ("tab20", 20)
    return [to_hex(colormaps[name](label % colours)) for label in range(max(labels) + 1)]


def _marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]
