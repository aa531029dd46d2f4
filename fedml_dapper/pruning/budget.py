"""From a pruning ratio to the number of channels each group keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fedml_dapper.errors import ConfigError
from fedml_dapper.profiling import part
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import ChannelLayout, Widths

RatioOf = Literal["parameters", "flops", "channels"]

TOLERANCE = 0.01
"""How far a slim model may miss its budget, as a share of the dense model."""
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
    closest to ``(1 - ratio)`` of the dense count. Raises :class:`ConfigError`, naming the ``setting`` that the ratio
    comes from, where the closest is more than 1 % of the dense count away (not checked for ``round_to`` > 1, whose
    coarser steps are the user's choice).
    """
    if ratio == 0 or not layout.groups:
        return {}
    if ratio_of == "channels":
        return _uniform_widths(layout, ratio, round_to)
    count, dense = _COUNTERS[ratio_of], _COUNTERS[ratio_of](layout, {})
    target = (1 - ratio) * dense
    low, high = 0.0, 1.0  # the count falls as the channel ratio grows, in steps
    for _ in range(40):
        middle = (low + high) / 2
        if count(layout, _uniform_widths(layout, middle, round_to)) > target:
            low = middle
        else:
            high = middle
    candidates = [_uniform_widths(layout, channel_ratio, round_to) for channel_ratio in (low, high)]
    best = min(candidates, key=lambda widths: abs(count(layout, widths) - target))
    if round_to == 1 and abs(count(layout, best) - target) > TOLERANCE * dense:
        smallest = count(layout, _uniform_widths(layout, 1.0, round_to)) / dense
        shares = sorted({f"{100 * count(layout, widths) / dense:.1f} %" for widths in candidates})
        raise ConfigError(
            f"{setting}: ratio {ratio:g} asks for {100 * (1 - ratio):.1f} % of the {ratio_of};"
            f" closest within reach: {' or '.join(shares)}; smallest share of this scope: {100 * smallest:.1f} %."
            " Choose another ratio, scope, width or ratio_of"
        )
    return best


def _uniform_widths(layout: ChannelLayout, channel_ratio: float, round_to: int) -> Widths:
    widths = {}
    for group in layout.groups.values():
        kept = group.channels - round(channel_ratio * group.channels)
        rounded = round(kept / round_to) * round_to
        widths[group.name] = min(group.channels, max(round_to, rounded, 1))
    return widths
