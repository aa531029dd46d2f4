from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import ModelArgs
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.pruning import Axis, trace_layout


class Plain(Backbone):
    """conv - BN - conv - flatten - linear - BN - predictor: every channel has one producer."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(3, 4, 3), norm(4), nn.Conv2d(4, 5, 3)
        self.hidden, self.hidden_norm = nn.Linear(5 * 16, 6), nn.BatchNorm1d(6)
        self.predictor = nn.Linear(6, 2)

    def encode(self, images: Tensor) -> Tensor:
        features = self.conv2(self.norm(self.conv1(images)).relu()).relu()
        return self.hidden_norm(self.hidden(features.flatten(1)))  # type: ignore[no-any-return]


def test_internal_scope_keeps_residual_streams_and_representation() -> None:
    layout = trace_layout(build_backbone(ModelArgs(model="resnet18", width=4), 10, 1), example_image(32), "internal")
    assert list(layout.groups) == [f"stages.{stage}.{block}.conv1" for stage in range(4) for block in range(2)]
    assert layout.tensors["stages.1.0.conv2.weight"].axes == (Axis(1, "stages.1.0.conv1"),)
    assert layout.tensors["stages.1.0.bn1.running_var"].axes == (Axis(0, "stages.1.0.conv1"),)
    assert not layout.tensors["predictor.weight"].axes


def test_grouped_scope_couples_all_that_is_added() -> None:
    layout = trace_layout(build_backbone(ModelArgs(model="resnet18", width=4), 10, 1), example_image(32), "grouped")
    assert layout.groups["stem.0"].producers == ("stem.0.weight", "stages.0.0.conv2.weight", "stages.0.1.conv2.weight")
    last = layout.groups["stages.3.0.conv2"]
    assert set(last.producers) >= {"stages.3.1.conv2.weight", "stages.3.0.shortcut.0.weight"}
    assert layout.tensors["predictor.weight"].axes == (Axis(1, last.name),)
    assert not layout.tensors["predictor.bias"].axes
    assert [axis.dim for axis in layout.tensors["stem.0.weight"].axes] == [0]  # RGB stays


def test_flattened_channels_span_blocks_of_inputs() -> None:
    layout = trace_layout(Plain(), example_image(8), "internal")
    assert list(layout.groups) == ["conv1", "conv2"]  # `hidden` makes z, which keeps its size
    assert layout.tensors["hidden.weight"].axes == (Axis(1, "conv2", repeat=16),)
    assert layout.tensors["hidden.weight"].shape_at({"conv2": 2}) == (6, 32)


@pytest.mark.parametrize(
    ("name", "internal", "flattening", "repeat"),
    [
        ("alexnet", [*(f"features.{layer}.conv" for layer in range(5)), "hidden.0.linear"], "hidden.0.linear", 36),
        ("lenet5", ["conv1", "conv2", "hidden.0"], "hidden.0", 169),
        ("lenet5_one_fc", ["conv1", "conv2"], "hidden.0", 169),
        ("lenet5_three_fc", ["conv1", "conv2", "hidden.0", "hidden.2"], "hidden.0", 169),
    ],
)
def test_plain_networks_prune_all_but_what_makes_z(
    name: str, internal: list[str], flattening: str, repeat: int
) -> None:
    model = build_backbone(ModelArgs(model=name, width=2), 10, 1, example_image(64))
    layout = trace_layout(model, example_image(64), "internal")
    last_convolution = [group for group in internal if "conv" in group][-1]
    assert list(layout.groups) == internal
    assert layout.tensors[f"{flattening}.weight"].axes[-1] == Axis(1, last_convolution, repeat)
    assert not layout.tensors["predictor.weight"].axes
    grouped = trace_layout(model, example_image(64), "grouped")
    assert list(grouped.groups)[:-1] == internal
    assert layout.groups.items() <= grouped.groups.items()
    assert grouped.tensors["predictor.weight"].axes == (Axis(1, list(grouped.groups)[-1]),)
    assert all(len(group.producers) == 1 for group in grouped.groups.values())


def test_official_masks_remove_nothing() -> None:
    assert not trace_layout(Plain(), example_image(8), "official_mask").groups


def test_without_a_scope_any_network_will_do() -> None:
    unfollowed = trace_layout(Plain(lambda channels: nn.InstanceNorm2d(channels, affine=True)), example_image(8), None)  # type: ignore[arg-type]
    assert not unfollowed.groups
    layout, traced = (trace_layout(Plain(), example_image(8), scope) for scope in (None, "internal"))
    assert layout.tensors == {name: replace(spec, axes=()) for name, spec in traced.tensors.items()}


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = Plain()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace_layout(model, example_image(8), "grouped")
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_layers_that_cannot_be_followed_stay_whole_and_are_named() -> None:
    layout = trace_layout(Plain(nn.InstanceNorm2d), example_image(8), "internal")  # type: ignore[arg-type]
    assert list(layout.groups) == ["conv2"]
    assert layout.notes == ("`conv1` not cut: a norm has no tensor that says its size in `norm`",)
