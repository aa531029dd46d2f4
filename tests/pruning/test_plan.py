from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import Importance, ModelArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import (
    Axis,
    ChannelGroup,
    ChannelLayout,
    PruningPlan,
    TensorSpec,
    plan_at_random,
    plan_by_importance,
    plan_window,
    trace_layout,
)
from fedml_dapper.pruning.plan import importance, keep_largest

TWO_GROUPS = ChannelLayout({"a": ChannelGroup("a", 5, ("a",)), "b": ChannelGroup("b", 8, ("b",))}, {})


def test_weakest_channels_go_and_indices_stay_sorted() -> None:
    scores = torch.tensor([2.0, 0.5, 4.0, 0.2, 3.0])  # rho 0.4 drops channels 4 and 2, counted from 1
    assert keep_largest(scores, 3).tolist() == [0, 2, 4]


def test_ties_keep_the_lower_index() -> None:
    assert keep_largest(torch.tensor([1.0, 1.0, 1.0, 2.0]), 2).tolist() == [0, 3]


def test_importance_sums_absolute_weights_over_all_producers() -> None:
    weights = {"a.weight": torch.tensor([[1.0, -2.0], [0.5, 0.0]]), "b.weight": torch.tensor([[[-1.0]], [[4.0]]])}
    spec = TensorSpec((2, 2), torch.float32, True, 0, (Axis(0, "a"),))
    group = ChannelGroup("a", 2, ("a.weight", "b.weight"))
    layout = ChannelLayout({"a": group}, dict.fromkeys(group.producers, spec))
    assert importance(layout, "a", weights).tolist() == [4.0, 4.5]


class Residual(nn.Module):
    """A stream of channels to which a layer, whose weight has inputs first, adds what it makes of it."""

    def __init__(self, stem: nn.Module, layer: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.layer = layer
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        return self.head(z + self.layer(z))  # type: ignore[no-any-return]


class Multiplied(nn.Module):
    """``x @ weight``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (Residual(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 8, 1), nn.Conv2d(8, 2, 4)), torch.zeros(1, 3, 4, 4)),
        (Residual(nn.Linear(3, 8), Multiplied(), nn.Linear(8, 2)), torch.zeros(1, 3)),
    ],
)
def test_a_channel_counts_by_what_makes_it_where_a_layer_reads_what_it_makes(model: nn.Module, example: Tensor) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        weight = model.get_parameter("layer.weight")
        weight[0] = torch.arange(8.0).view(weight[0].shape)
    layout = trace_layout(model, example, "grouped")
    assert importance(layout, "stem", model.state_dict()).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_plan_keeps_the_strong_filters_of_each_group() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1)
    layout = trace_layout(model, example_image(32), "internal")
    with torch.no_grad():
        model.get_parameter("stages.0.0.conv1.weight")[2] *= 0.001
    plan = plan_by_importance(layout, model.state_dict(), {"stages.0.0.conv1": 3})
    assert plan.kept["stages.0.0.conv1"].tolist() == [0, 1, 3]
    assert plan.widths == {"stages.0.0.conv1": 3}


def test_random_plans_repeat_and_keep_a_fixed_number_of_each_group() -> None:
    def draw(seed: int, widths: dict[str, int]) -> PruningPlan:
        plan = plan_at_random(TWO_GROUPS, widths, np.random.default_rng(seed))
        plan.check(TWO_GROUPS)
        return plan

    first, again, other = (draw(seed, {"a": 2, "b": 4}) for seed in (1, 1, 2))
    assert first.widths == {"a": 2, "b": 4}
    assert all(torch.equal(kept, again.kept[name]) for name, kept in first.kept.items())
    assert any(not torch.equal(kept, other.kept[name]) for name, kept in first.kept.items())
    reordered = draw(1, {"b": 4, "a": 2})  # the layout's order counts, not that of the widths
    assert all(torch.equal(kept, reordered.kept[name]) for name, kept in first.kept.items())
    assert draw(1, {"b": 8}).kept["b"].tolist() == list(range(8))
    assert draw(1, {}).kept == {}


def test_random_plans_keep_every_channel_equally_often() -> None:
    generator, kept = np.random.default_rng(0), torch.zeros(5)
    for _ in range(2000):
        kept[plan_at_random(TWO_GROUPS, {"a": 2}, generator).kept["a"]] += 1
    assert (kept / 2000).tolist() == pytest.approx([0.4] * 5, abs=0.04)  # 3.6 standard deviations


def test_windows_wrap_around_within_each_group() -> None:
    plan = plan_window(TWO_GROUPS, {"a": 3, "b": 3}, start=6)
    plan.check(TWO_GROUPS)
    assert plan.kept["a"].tolist() == [1, 2, 3]
    assert plan.kept["b"].tolist() == [0, 6, 7]
    assert plan_window(TWO_GROUPS, {"a": 3}).kept["a"].tolist() == [0, 1, 2]
    assert plan_window(TWO_GROUPS, {}, start=6).kept == {}


@pytest.mark.parametrize(
    ("group", "indices"),
    [
        ("nowhere", torch.tensor([0])),
        ("stages.0.0.conv1", torch.tensor([0, 4])),
        ("stages.0.0.conv1", torch.tensor([-1, 2])),
        ("stages.0.0.conv1", torch.tensor([2, 1])),
        ("stages.0.0.conv1", torch.tensor([1, 1])),
        ("stages.0.0.conv1", torch.tensor([], dtype=torch.int64)),
        ("stages.0.0.conv1", torch.tensor([0.0])),
    ],
)
def test_plans_that_do_not_fit_are_refused(group: str, indices: torch.Tensor) -> None:
    layout = trace_layout(
        build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1), example_image(32), "internal"
    )
    with pytest.raises(ProtocolError):
        PruningPlan({group: indices}).check(layout)


@pytest.mark.parametrize(
    ("by", "scores"), [("filters", [3.0, 4.5]), ("gains", [2.0, 0.5]), ("scaled_filters", [6.0, 2.25])]
)
def test_gains_of_standardised_filters_count_if_so_set(by: Importance, scores: list[float]) -> None:
    weights = {"a.weight": torch.tensor([[1.0, -2.0], [0.5, 4.0]]), "a.gain": torch.tensor([-2.0, 0.5])}
    axes = (Axis(0, "a"),)
    tensors = {name: TensorSpec(tuple(each.shape), each.dtype, True, 0, axes) for name, each in weights.items()}
    layout = ChannelLayout({"a": ChannelGroup("a", 2, ("a.weight",))}, tensors, importance=by)
    assert importance(layout, "a", weights).tolist() == scores
