"""Figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedml_dapper.evaluation.cost import cost_reference
from fedml_dapper.evaluation.spending import Kind, axis, spent
from fedml_dapper.evaluation.style import MARKERS, PALETTE, below_legend, label_rounds, markers, panel
from fedml_dapper.evaluation.units import quantity, share
from fedml_dapper.federation import ClientRecord, LevelFootprint, RoundRecord, RunRecord
from fedml_dapper.metric import Metric


def domain_colours(run: RunRecord) -> dict[str, str]:
    """Return a colour per domain, the same in every figure and table."""
    return {domain: PALETTE[place % len(PALETTE)] for place, domain in enumerate(run.domains)}


def level_colours(run: RunRecord) -> dict[int, str]:
    """Return a colour per capability level, dark for strong; their order shows without colour vision too."""
    steps = max(len(run.footprints) - 1, 1)
    viridis = colormaps["viridis"]
    return {footprint.level: to_hex(viridis(0.88 * place / steps)) for place, footprint in enumerate(run.footprints)}


def on_test_data(metric: Metric) -> str:
    """Return the label of an axis of the headline figure."""
    return replace(metric, name=f"{metric.name} on test data").title


def learning_curves(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the global model's headline figure in the tested rounds: every domain, and their mean."""
    tested = [(record.round, record.scores) for record in rounds if record.scores is not None]
    numbers = [number for number, _ in tested]
    figure, axes = panel()
    for place, (domain, colour) in enumerate(domain_colours(run).items()):
        # NaN leaves a gap where a domain's silo was away
        values = [scores.domain_accuracy.get(domain, float("nan")) for _, scores in tested]
        axes.plot(numbers, values, color=colour, label=domain, linewidth=1.3, **markers(place, len(numbers)))
    means = [scores.global_accuracy for _, scores in tested]
    axes.plot(numbers, means, color="black", label="global (mean)", linewidth=3, **markers(0, len(numbers)))
    _label_rounds(axes, rounds, on_test_data(run.metric))
    below_legend(figure, axes.get_lines(), [str(line.get_label()) for line in axes.get_lines()])
    return figure


def accuracy_against(kind: Kind, run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure | None:
    """Draw the global model's headline figure over what the run had spent by then; None where that is not known."""
    values = spent(kind, rounds)
    if not values:
        return None
    scale, label = axis(kind, values[-1])
    tested = [(x / scale, r.scores.global_accuracy) for x, r in zip(values, rounds, strict=True) if r.scores]
    figure, axes = panel(2.8)
    axes.plot(*zip(*tested, strict=True), color="black", linewidth=2, **markers(0, len(tested)))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.set_xlabel(label)
    axes.set_ylabel(on_test_data(run.metric))
    return figure


def accuracy_and_epsilon(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the global model's headline figure in the tested rounds, beside their privacy cost."""
    private = [(record.round, record.privacy.epsilon) for record in rounds if record.privacy is not None]
    tested = [(record.round, record.scores.global_accuracy) for record in rounds if record.scores is not None]
    figure, axes = panel()
    numbers, means = zip(*tested, strict=True)
    axes.plot(numbers, means, color="black", label="global (mean)", linewidth=3, **markers(0, len(numbers)))
    costs = axes.twinx()
    costs.plot(*zip(*private, strict=True), color=PALETTE[0], label="epsilon (right)", **markers(1, len(private)))
    costs.set_ylabel("epsilon of a client")
    costs.set_ylim(bottom=0)
    _label_rounds(axes, rounds, on_test_data(run.metric))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def loss_per_level(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the training loss of each capability level's clients, round by round."""
    return _per_level("loss per sample", run, rounds, lambda c: c.loss)


def seconds_per_level(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw how long the clients of each capability level took, round by round."""
    figure = _per_level("seconds per client", run, rounds, lambda c: c.seconds)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def footprint_bars(run: RunRecord) -> Figure:
    """Draw parameters and uplink of each capability level's model, as shares of the dense model's."""
    reference = cost_reference(run.footprints)
    figure, axes = panel(1.1 + 0.62 * len(run.footprints))
    colours = level_colours(run)
    bars = (("params", "", -0.19, 1.0), ("bytes_up", "B", 0.19, 0.45))
    for place, footprint in enumerate(run.footprints):
        for field, unit, offset, opacity in bars:
            part = getattr(footprint, field)
            whole = getattr(reference.footprint, field)
            y = place + offset
            length = 100 * part / whole if whole else 0.0
            axes.barh(y, length, height=0.36, color=colours[footprint.level], alpha=opacity)
            axes.text(length + 1.5, y, f"{quantity(part, unit)} ({share(part, whole)})", va="center")
    axes.set_yticks(range(len(run.footprints)), [_level_name(footprint) for footprint in run.footprints])
    axes.invert_yaxis()
    axes.set_xlim(0, 190)
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel(f"share of the {reference.name} model (%)")
    axes.set_ylabel("capability level")
    patches = (Patch(color="0.25", label="parameters"), Patch(color="0.25", alpha=0.45, label="bytes up, per round"))
    figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return figure


def device_bars(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw each level's headline figure when it was last measured: a bar for the mean over domains, a mark for each."""
    devices = next(record.devices for record in reversed(rounds) if record.devices is not None)
    figure, axes = panel(1.1 + 0.62 * len(run.footprints))
    colours = level_colours(run)
    kinds = [("as sent", devices.sent, 0.75)]
    if devices.own_statistics is not None:
        kinds.append(("own statistics", devices.own_statistics, 0.35))
    height = 0.72 / len(kinds)
    for kind, (_, figures, opacity) in enumerate(kinds):
        for place, found in enumerate(figures.levels):
            y = place + (kind - (len(kinds) - 1) / 2) * height
            value = found.accuracy
            if value is not None:
                axes.barh(y, value, height=height, color=colours[found.level], alpha=opacity)
            text = "no model" if value is None else run.metric.number(value)
            axes.text(1.02, y, text, va="center", transform=axes.get_yaxis_transform())
            for number, (domain, colour) in enumerate(domain_colours(run).items()):
                if domain in found.domain_accuracy:
                    axes.plot(found.domain_accuracy[domain], y, color=colour, linestyle="", zorder=3, **_mark(number))
    axes.set_yticks(range(len(run.footprints)), [_level_name(footprint) for footprint in run.footprints])
    axes.invert_yaxis()
    if run.metric.unit == "%":
        axes.set_xlim(0, 100)
    axes.set_xlabel(run.metric.title)
    axes.set_ylabel("capability level")
    handles: list[Patch | Line2D] = [
        Patch(color="0.25", alpha=opacity, label=f"mean, {name}") for name, _, opacity in kinds
    ]
    handles += [
        Line2D([], [], color=colour, linestyle="", label=domain, **_mark(number))
        for number, (domain, colour) in enumerate(domain_colours(run).items())
    ]
    below_legend(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def level_curves(run: RunRecord, rounds: Sequence[RoundRecord]) -> Figure:
    """Draw each level's headline figure, as sent, in the rounds in which it was measured; mean over the domains."""
    measured = [(record.round, record.devices.sent.levels) for record in rounds if record.devices is not None]
    figure, axes = panel()
    colours = level_colours(run)
    lines = []
    for place, footprint in enumerate(run.footprints):
        points = [(number, levels[place].accuracy) for number, levels in measured if levels[place].accuracy is not None]
        if points:
            look = markers(place, len(points))
            lines += axes.plot(
                *zip(*points, strict=True), color=colours[footprint.level], label=_level_name(footprint), **look
            )
    _label_rounds(axes, rounds, on_test_data(run.metric))
    below_legend(figure, lines, [str(line.get_label()) for line in lines])
    return figure


def _mark(place: int) -> dict[str, Any]:
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 5}


@dataclass(frozen=True)
class _Spread:
    """A level's clients in one round."""

    round: int
    mean: float
    low: float
    high: float


def _per_level(
    unit: str, run: RunRecord, rounds: Sequence[RoundRecord], value: Callable[[ClientRecord], float]
) -> Figure:
    figure, axes = panel()
    colours = level_colours(run)
    lines = []
    for place, footprint in enumerate(run.footprints):
        spreads = _spreads(rounds, footprint.level, value)
        if not spreads:
            continue
        numbers = [spread.round for spread in spreads]
        colour = colours[footprint.level]
        lows = [spread.low for spread in spreads]
        highs = [spread.high for spread in spreads]
        axes.fill_between(numbers, lows, highs, color=colour, alpha=0.12, linewidth=0)
        means = [spread.mean for spread in spreads]
        name = _level_name(footprint)
        marked = markers(place, len(numbers))
        lines += axes.plot(numbers, means, color=colour, label=name, linewidth=1.6, **marked)
    _label_rounds(axes, rounds, unit)
    below_legend(figure, lines, [str(line.get_label()) for line in lines])
    return figure


def _spreads(rounds: Sequence[RoundRecord], level: int, value: Callable[[ClientRecord], float]) -> list[_Spread]:
    spreads = []
    for record in rounds:
        values = [value(client) for client in record.clients if client.level == level]
        if values:
            spreads.append(_Spread(record.round, fmean(values), min(values), max(values)))
    return spreads


def _label_rounds(axes: Axes, rounds: Sequence[RoundRecord], unit: str) -> None:
    label_rounds(axes, max((record.round for record in rounds), default=1), unit)


def _level_name(footprint: LevelFootprint) -> str:
    return f"level {footprint.level} (ratio {footprint.ratio:g})"
