from __future__ import annotations

from dataclasses import replace

import pytest

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import ChannelLayout, solve_widths, trace_layout
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import Scope


def layout_of(width: int, scope: Scope = "internal") -> ChannelLayout:
    return trace_layout(build_backbone(ModelArgs(model="resnet10", width=width), 10, seed=1), example_image(32), scope)


def test_channel_rule_rounds_half_to_even_and_keeps_one() -> None:
    layout = layout_of(64)
    kept = {ratio: list(solve_widths(layout, ratio, "channels").values()) for ratio in (0.2, 0.4, 0.6, 0.8, 0.999)}
    assert kept[0.2] == [51, 102, 205, 410]
    assert kept[0.4] == [38, 77, 154, 307]
    assert kept[0.6] == [26, 51, 102, 205]
    assert kept[0.8] == [13, 26, 51, 102]
    assert kept[0.999] == [1, 1, 1, 1]


@pytest.mark.parametrize("width", [8, 16, 64])
@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_budgets_are_met_within_one_percent_of_the_dense_model(width: int, scope: Scope) -> None:
    layout = layout_of(width, scope)
    for ratio in (0.2, 0.4, 0.6, 0.8):
        for ratio_of, count in (("parameters", count_parameters), ("flops", count_macs)):
            if (width, ratio_of) == (8, "flops"):
                continue  # one channel of eight is more than 1 % of the MACs
            share = count(layout, solve_widths(layout, ratio, ratio_of)) / count(layout, {})  # type: ignore[arg-type]
            assert share == pytest.approx(1 - ratio, abs=0.01)


def test_ratio_zero_cuts_nothing() -> None:
    assert solve_widths(layout_of(8), 0.0, "parameters") == {}


def test_unreachable_budget_says_the_smallest_share() -> None:
    with pytest.raises(
        ConfigError, match=r"ratio 0\.99 asks for 1\.0 % .* the smallest share of this scope is 4\.\d %"
    ):
        solve_widths(layout_of(64), 0.99, "parameters")


def test_steps_too_coarse_for_the_budget_end_at_the_largest_model_within() -> None:
    layout = layout_of(1)
    dense, widths = count_parameters(layout, {}), solve_widths(layout, 0.4, "parameters")
    assert count_parameters(layout, widths) < 0.59 * dense
    for group in widths:
        if widths[group] < layout.groups[group].channels:
            assert count_parameters(layout, {**widths, group: widths[group] + 1}) > 0.6 * dense


def test_groups_go_on_one_by_one_where_they_take_too_large_steps_together() -> None:
    layout = layout_of(2)
    widths = solve_widths(layout, 0.65, "parameters")
    assert count_parameters(layout, widths) / count_parameters(layout, {}) == pytest.approx(0.35, abs=0.01)


def test_widths_round_to_multiples() -> None:
    widths = solve_widths(layout_of(64), 0.55, "parameters", round_to=8)
    assert all(width % 8 == 0 for width in widths.values())
    assert min(solve_widths(layout_of(64), 0.95, "channels", round_to=8).values()) == 8


def test_a_network_without_channels_to_cut_is_refused() -> None:
    layout = replace(layout_of(8), groups={})
    with pytest.raises(ConfigError, match=r"levels\.ratios: ratio 0\.2 cannot be met: no channel of this network can"):
        solve_widths(layout, 0.2, "flops")
