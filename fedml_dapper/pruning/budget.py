"""Widths that meet a pruning ratio: how many channels each group keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import floor
from typing import Literal

from fedml_dapper.errors import ConfigError
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import ChannelLayout, Widths

RatioOf = Literal["parameters", "flops", "channels"]
"""Size of a model that a ratio is a share of."""

TOLERANCE = 0.01
"""How far a slim model may miss its budget, as a share of the dense model."""
Count = Callable[[Widths], int]


class OutOfReachError(ConfigError):
    """Raised when no widths of a layout are as small as the pruning ratio asks for."""


_COUNTERS: dict[RatioOf, Callable[[ChannelLayout, Widths], int]] = {
    "parameters": count_parameters,
    "flops": count_macs,
}


@part("pruning")
def solve_widths(
    layout: ChannelLayout,
    ratio: float,
    ratio_of: RatioOf,
    round_to: int = 1,
    setting: str = "dapper_args.levels.ratios",
) -> Widths:
    """Return how many channels each group keeps so that the model is ``ratio`` smaller than the dense one.

    With ``ratio_of="channels"`` every group loses ``round(ratio * C)`` channels (half to even) and keeps at least one.
    Otherwise one channel ratio for all groups is found by bisection, such that the real count of parameters or MACs
    comes closest to ``(1 - ratio)`` of the dense count. Where its steps are too coarse, groups shrink one by one. Where
    the closest is still more than :data:`TOLERANCE` of the dense count away (heads of attention, GroupNorm), the
    largest model within the budget is taken.

    Args:
        ratio: Share of the dense model to remove, from 0 to below 1.
        ratio_of: What the ratio counts.
        round_to: Widths are multiples of this number, as far as groups are wide enough.
        setting: Name of the setting that the ratio comes from, for errors.

    Raises:
        OutOfReachError: No model of this layout is as small; the message names the smallest share. Not checked for
            ``round_to`` > 1, whose coarser steps are the user's choice.
    """
    if ratio == 0:
        return {}
    if not layout.groups:
        raise OutOfReachError(
            f"{setting}: ratio {ratio:g} cannot be met: no channel of this network can be cut in this scope;"
            f" train it whole by ratios [0], or by a method that does not slim{_whole(layout)}"
        )
    if ratio_of == "channels":
        return _uniform_widths(layout, ratio, round_to)
    count = partial(_COUNTERS[ratio_of], layout)
    dense = count({})
    target = (1 - ratio) * dense

    def miss(widths: Widths) -> float:
        return abs(count(widths) - target)

    above, below = _neighbours(layout, round_to, count, target)
    best = min((above, below), key=miss)
    if round_to > 1 or miss(best) <= TOLERANCE * dense:
        return best
    candidates = [above, below, *_in_between(layout, above, below, count, target)]
    best = min(candidates, key=miss)
    if miss(best) <= TOLERANCE * dense:
        return best
    smallest = count(_uniform_widths(layout, 1.0, round_to)) / dense
    if smallest > 1 - ratio:
        raise OutOfReachError(
            f"{setting}: ratio {ratio:g} asks for {100 * (1 - ratio):.1f} % of the {ratio_of}; the smallest share of"
            f" this scope is {100 * smallest:.1f} %, a ratio of {floor(1000 * (1 - smallest)) / 1000:g}."
            " Choose a smaller ratio, another pruning.scope (`fedml-dapper settings scope`) or ratio_of"
            f"{_whole(layout)}"
        )
    return max((widths for widths in candidates if count(widths) <= target), key=count)


def largest_ratio(layout: ChannelLayout, ratio_of: RatioOf, round_to: int = 1) -> float:
    """Return the largest ratio that :func:`solve_widths` can meet, rounded down to three digits.

    By channels it is 0.999, as any ratio below 1 can be met.
    """
    if not layout.groups:
        return 0.0
    if ratio_of == "channels":
        return 0.999
    count = partial(_COUNTERS[ratio_of], layout)
    return floor(1000 * (1 - count(_uniform_widths(layout, 1.0, round_to)) / count({}))) / 1000


def _whole(layout: ChannelLayout) -> str:
    """The layout's notes on layers that cannot be cut, as the end of an error's sentence."""
    return "".join(f"; {note}" for note in layout.notes)


def _neighbours(
    layout: ChannelLayout, round_to: int, count: Count, target: float, pinned: Widths | None = None
) -> tuple[Widths, Widths]:
    """Return the smallest widths above the target and the largest below it, for one channel ratio of all groups.

    Groups that ``pinned`` names keep the widths it gives.
    """

    def widths(channel_ratio: float) -> Widths:
        return {**_uniform_widths(layout, channel_ratio, round_to), **(pinned or {})}

    low, high = 0.0, 1.0  # the count falls in steps as the channel ratio grows
    for _ in range(40):  # enough halvings to tell single channels apart
        middle = (low + high) / 2
        if count(widths(middle)) > target:
            low = middle
        else:
            high = middle
    return widths(low), widths(high)


def _in_between(layout: ChannelLayout, above: Widths, below: Widths, count: Count, target: float) -> Iterator[Widths]:
    """Yield widths between ``above`` and ``below``, which shrink one more group at a time.

    Where groups have few channels, shrinking all of them together takes too large steps. For each of these widths, the
    groups that do not differ between the two are adjusted to make up for what is missed.
    """
    steps = [name for name in above if above[name] != below[name]]
    for taken in range(len(steps) + 1):
        mixed = {**above, **{name: below[name] for name in steps[:taken]}}
        yield mixed
        yield from _neighbours(layout, 1, count, target, {name: mixed[name] for name in steps})


def _uniform_widths(layout: ChannelLayout, channel_ratio: float, round_to: int) -> Widths:
    widths = {}
    for group in layout.groups.values():
        kept = group.channels - round(channel_ratio * group.channels)
        rounded = round(kept / round_to) * round_to
        widths[group.name] = min(group.channels, max(round_to, rounded, 1))
    return widths
