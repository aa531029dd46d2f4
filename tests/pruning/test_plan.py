from __future__ import annotations

import pytest
import torch

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.models import build_backbone
from fedml_dapper.pruning import ChannelGroup, PruningPlan, plan_by_importance, trace_layout
from fedml_dapper.pruning.plan import keep_largest, l1_importance


def test_weakest_channels_go_and_indices_stay_sorted() -> None:
    scores = torch.tensor([2.0, 0.5, 4.0, 0.2, 3.0])  # METHODS A.9.5: rho 0.4 drops channels 4 and 2, counted from 1
    assert keep_largest(scores, 3).tolist() == [0, 2, 4]


def test_ties_keep_the_lower_index() -> None:
    assert keep_largest(torch.tensor([1.0, 1.0, 1.0, 2.0]), 2).tolist() == [0, 3]


def test_importance_sums_absolute_weights_over_all_producers() -> None:
    weights = {"a.weight": torch.tensor([[1.0, -2.0], [0.5, 0.0]]), "b.weight": torch.tensor([[[-1.0]], [[4.0]]])}
    group = ChannelGroup("a", 2, ("a.weight", "b.weight"))
    assert l1_importance(group, weights).tolist() == [4.0, 4.5]


def test_plan_keeps_the_strong_filters_of_each_group() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1)
    layout = trace_layout(model, 32, "internal")
    with torch.no_grad():
        model.get_parameter("stages.0.0.conv1.weight")[2] *= 0.001
    plan = plan_by_importance(layout, model.state_dict(), {"stages.0.0.conv1": 3})
    assert plan.kept["stages.0.0.conv1"].tolist() == [0, 1, 3]
    assert plan.widths == {"stages.0.0.conv1": 3}


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
    layout = trace_layout(build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1), 32, "internal")
    with pytest.raises(ProtocolError):
        PruningPlan({group: indices}).check(layout)
