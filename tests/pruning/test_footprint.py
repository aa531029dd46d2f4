"""Footprints: integers by hand, and the paper's Tables 5 and 6."""

from __future__ import annotations

import pytest

from fedml_dapper.config import ModelArgs
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import ChannelLayout, footprint, solve_widths, trace_layout
from fedml_dapper.pruning.layout import Scope

# rho -> (parameters, MACs)
INTEGERS = {
    ("resnet10", 32, "internal"): {
        0.0: (4_903_242, 254_170_112),
        0.2: (3_961_674, 204_722_624),
        0.4: (3_014_922, 155_607_392),
        0.6: (2_071_050, 107_120_288),
        0.8: (1_124_298, 58_005_056),
    },
    ("resnet10", 32, "grouped"): {
        0.2: (3_143_294, 162_475_012),
        0.4: (1_769_220, 91_646_702),
        0.6: (786_884, 41_584_306),
        0.8: (197_364, 10_724_732),
    },
    ("resnet18", 28, "internal"): {
        0.0: (11_173_962, 457_664_000),
        0.2: (8_982_090, 367_084_052),
        0.4: (6_778_122, 277_037_048),
        0.6: (4_580_490, 187_871_240),
        0.8: (2_376_522, 97_824_236),
    },
    ("resnet18", 28, "grouped"): {
        0.2: (7_162_706, 292_426_165),
        0.4: (4_027_608, 164_714_294),
        0.6: (1_791_128, 74_195_746),
        0.8: (447_432, 18_897_833),
    },
    ("resnet18", 32, "internal"): {0.0: (11_173_962, 556_651_520)},
    ("alexnet", 256, "internal"): {0.0: (12_974_154, 880_282_560)},  # x 50 is 4.40e10; FDSE's Table 4 says 4.41
    ("lenet5", 32, "internal"): {0.0: (62_050, 664_328)},
}
# rho -> (million parameters, million MACs) as printed
TABLE_5 = {0.2: (3.92, 203.34), 0.4: (2.94, 152.50), 0.6: (1.96, 101.67), 0.8: (0.98, 50.83)}
TABLE_6 = {0.2: (8.94, 366.13), 0.4: (6.70, 274.60), 0.6: (4.47, 183.06), 0.8: (2.23, 91.53)}


def layout_of(name: str, input_size: int, scope: Scope, width: int | None = None) -> ChannelLayout:
    return trace_layout(
        build_backbone(ModelArgs(model=name, width=width), 10, 1, example_image(input_size)),
        example_image(input_size),
        scope,
    )


@pytest.mark.parametrize(("name", "input_size", "scope"), INTEGERS)
def test_channel_ratios_give_the_exact_integers(name: str, input_size: int, scope: Scope) -> None:
    layout = layout_of(name, input_size, scope)
    for ratio, expected in INTEGERS[name, input_size, scope].items():
        cost = footprint(layout, solve_widths(layout, ratio, "channels"))
        assert (cost.parameters, cost.macs) == expected


@pytest.mark.parametrize(("name", "input_size", "table"), [("resnet10", 32, TABLE_5), ("resnet18", 28, TABLE_6)])
def test_parameter_ratios_meet_the_papers_tables_within_one_percent(
    name: str, input_size: int, table: dict[float, tuple[float, float]]
) -> None:
    layout = layout_of(name, input_size, "internal")
    for ratio, (million_parameters, million_macs) in table.items():
        cost = footprint(layout, solve_widths(layout, ratio, "parameters"))
        assert cost.parameters / 1e6 == pytest.approx(million_parameters, rel=0.01)
        assert cost.macs / 1e6 == pytest.approx(million_macs, rel=0.01)


def test_bytes_count_the_state_dict_and_one_bit_per_channel() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=8), 10, seed=1)
    layout = trace_layout(model, example_image(32), "internal")
    state_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert footprint(layout, {}).bytes_up == footprint(layout, {}).bytes_down == state_bytes
    widths = {"stages.0.0.conv1": 3}  # of 8: five rows of conv1, five columns of conv2, 5 x 4 BatchNorm entries
    assert footprint(layout, widths).bytes_up == state_bytes - 4 * (5 * 72 + 5 * 72 + 5 * 4) + 1
    statistics = {"stages.0.0.bn1.running_mean", "stages.0.0.bn1.running_var"}
    assert footprint(layout, widths, unsliced=statistics).bytes_up == footprint(layout, widths).bytes_up + 4 * 5 * 2
