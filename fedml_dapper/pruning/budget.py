"""From a pruning ratio to the number of channels each group keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import floor
from typing import Literal

from fedml_dapper.errors import ConfigError
from fedml_dapper.profiling import part
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import ChannelLayout, Widths

RatioOf = Literal["parameters", "flops", "channels"]

TOLERANCE = 0.01
"""How far a slim model may miss its budget, as a share of the dense model."""
Count = Callable[[Widths], int]
_COUNTERS: dict[RatioOf, Callable[[ChannelLayout, Widths], int]] = {
    "parameters": count_parameters,
    "flops": count_macs,
}


@part("pruning")
def solve_widths(
    layout: ChannelLayout, ratio: float, ratio_of: RatioOf, round_to: int = 1,
    setting: str = "dapper_args.levels.ratios",
) -> Widths:  # fmt: skip
    """Channels each group keeps so that the model is ``ratio`` smaller than the dense one.

    With ``ratio_of="channels"`` every group loses ``round(ratio * C)`` channels (half to even) and keeps at least one.
    Otherwise one common channel ratio is found by bisection such that the real count of parameters or MACs comes
    closest to ``(1 - ratio)`` of the dense count; where its steps are too coarse, groups go on one by one. Raises
    :class:`ConfigError`, naming the ``setting`` that the ratio comes from and the range within reach, where the closest
    is more than 1 % of the dense count away (not checked for ``round_to`` > 1, whose coarser steps are the user's
    choice).
    """
    if ratio == 0 or not layout.groups:
        return {}
    if ratio_of == "channels":
        return _uniform_widths(layout, ratio, round_to)
    count = partial(_COUNTERS[ratio_of], layout)
    dense = count({})
    target = (1 - ratio) * dense

    def miss(widths: Widths) -> float:
        return abs(count(widths) - target)

    above, below = _neighbours(layout, round_to, count, target)
    best = min((above, below), key=miss)
    if round_to == 1 and miss(best) > TOLERANCE * dense:
        best = min((best, *_in_between(layout, above, below, count, target)), key=miss)
    if round_to == 1 and miss(best) > TOLERANCE * dense:
        smallest = count(_uniform_widths(layout, 1.0, round_to)) / dense
        shares = sorted({f"{100 * count(widths) / dense:.1f} %" for widths in (above, below, best)})
        raise ConfigError(
            f"{setting}: ratio {ratio:g} asks for {100 * (1 - ratio):.1f} % of the {ratio_of};"
            f" closest within reach: {' or '.join(shares)}; smallest share of this scope: {100 * smallest:.1f} %,"
            f" a ratio of {floor(1000 * (1 - smallest)) / 1000:g}."
            " Choose another ratio, scope, width or ratio_of"
        )
    return best


def _neighbours(
    layout: ChannelLayout, round_to: int, count: Count, target: float, pinned: Widths | None = None
) -> tuple[Widths, Widths]:
    """The smallest widths that are above the target and the largest below, of one channel ratio but for ``pinned``."""

    def widths(channel_ratio: float) -> Widths:
        return {**_uniform_widths(layout, channel_ratio, round_to), **(pinned or {})}

    low, high = 0.0, 1.0  # the count falls as the channel ratio grows, in steps
    for _ in range(40):
        middle = (low + high) / 2
        if count(widths(middle)) > target:
            low = middle
        else:
            high = middle
    return widths(low), widths(high)


def _in_between(layout: ChannelLayout, above: Widths, below: Widths, count: Count, target: float) -> Iterator[Widths]:
    """Widths from ``above`` to ``below``, group by group, where groups of few channels take too large steps together.

    For each, besides, the groups that do not differ between the two make up for what is missed.
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
