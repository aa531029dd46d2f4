"""Rank components as channels: followed, ranked by |b_j| |a_j|, cut; and levels of ranks and shares of the base."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import AdapterArgs, LevelArgs, LevelBudget, PruningArgs, Settings, check
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import Backbone, adopt
from fedml_dapper.models.adapters import AdaptedLinear, add_adapters, merged
from fedml_dapper.pruning import ChannelLayout, PruningPlan, plan_by_importance, slim_model, trace_layout
from fedml_dapper.pruning.budgets import budgeted_levels
from fedml_dapper.pruning.footprint import count_parameters
from fedml_dapper.pruning.plan import importance
from fedml_dapper.pruning.slim import slim_layout

from ..pruning.attention_networks import ATTENTION
from ..pruning.networks import build
from .test_layers import IMAGE, PICTURES, adapted
from .vit import small_vit

GROUPS = ("query", "key", "value", "out", "up", "down")
BUDGETS = (LevelBudget(rank=4), LevelBudget(rank=2, base=0.2), LevelBudget(rank=1, base=0.5))


def traced(backbone: Backbone) -> ChannelLayout:
    return trace_layout(backbone, IMAGE, "internal")


def silenced(backbone: Backbone, plan: PruningPlan) -> Backbone:
    """The dense network without the channels that the plan drops: nothing reads them."""
    quiet = copy.deepcopy(backbone)
    layout = traced(backbone)
    tensors = dict(quiet.named_parameters())
    for group, kept in plan.kept.items():
        gone = torch.ones(layout.groups[group].channels, dtype=torch.bool)
        gone[kept] = False
        partner = layout.groups[group].partner
        block = group.rpartition(".")[0].removesuffix(".attention")
        readers = [partner] if partner else [f"{block}.down.weight", f"{block}.down.lora_a"]
        if group.endswith("query"):
            readers = [f"{block}.out.weight", f"{block}.out.lora_a"]
        for reader in readers:
            width = tensors[reader].shape[1] // len(gone)
            tensors[reader].data[:, gone.repeat_interleave(width)] = 0
    return quiet


def test_every_adapter_is_a_group_of_its_own_and_the_base_keeps_its_groups() -> None:
    layout = traced(adapted())
    adapters = {f"blocks.{block}.{layer}.lora_a" for block in range(2) for layer in GROUPS}
    assert layout.groups.keys() == adapters | {
        f"blocks.{block}.{layer}" for block in range(2) for layer in ("query", "up")
    }
    assert all(layout.groups[name].partner == name.replace("lora_a", "lora_b") for name in adapters)
    assert layout.notes == ()


def test_importance_is_the_norm_of_a_component_s_part_in_the_product() -> None:
    backbone = adapted()
    layer = backbone.get_submodule("blocks.0.up")
    assert isinstance(layer, AdaptedLinear)
    found = importance(traced(backbone), "blocks.0.up.lora_a", backbone.state_dict())
    parts = [torch.linalg.matrix_norm(torch.outer(layer.lora_b[:, j], layer.lora_a[j])) for j in range(4)]
    torch.testing.assert_close(found, torch.stack(parts).double().detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("group", ["query.lora_a", "up.lora_a", "down.lora_a", "out.lora_a", "up", "query"])
def test_sliced_equals_silenced(group: str) -> None:
    backbone = adapted()
    layout = traced(backbone)
    name = f"blocks.1.{group}"
    channels = layout.groups[name].channels
    plan = PruningPlan({name: torch.arange(channels)[1 : channels - 1]})
    slim = slim_model(backbone, layout, plan)
    torch.testing.assert_close(slim(PICTURES), silenced(backbone, plan)(PICTURES), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(slim(PICTURES), backbone(PICTURES), rtol=1e-5, atol=1e-5)


def test_a_level_sliced_is_the_level_silenced_and_merges() -> None:
    backbone = adapted()
    layout = traced(backbone)
    for level in budgeted_levels(layout, BUDGETS, PruningArgs())[1:]:
        plan = plan_by_importance(layout, backbone.state_dict(), level.widths)
        slim = slim_model(backbone, layout, plan)
        torch.testing.assert_close(slim(PICTURES), silenced(backbone, plan)(PICTURES), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(merged(slim)(PICTURES), slim(PICTURES), rtol=1e-5, atol=1e-5)
        assert not [name for name, _ in merged(slim).named_parameters() if "lora" in name]


def test_what_is_cut_on_is_what_was_cut_at_once() -> None:
    backbone = adapted()
    layout = traced(backbone)
    name = "blocks.0.query"
    first = PruningPlan({name: torch.tensor([0, 1, 3]), f"{name}.lora_a": torch.tensor([0, 2, 3])})
    then = PruningPlan({name: torch.tensor([2]), f"{name}.lora_a": torch.tensor([1])})
    at_once = PruningPlan({name: torch.tensor([3]), f"{name}.lora_a": torch.tensor([2])})
    once = slim_model(backbone, layout, first)
    twice = slim_model(once, slim_layout(layout, first), then)
    assert torch.equal(twice(PICTURES), slim_model(backbone, layout, at_once)(PICTURES))


@pytest.mark.parametrize("name", ATTENTION)
def test_heads_in_the_views_of_libraries_go_with_their_adapters(name: str) -> None:
    picture = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    backbone = adopt(build(name), picture)
    plain = trace_layout(backbone, picture, "internal").groups.keys()
    add_adapters(backbone, AdapterArgs(rank=2), picture, name)
    groups = trace_layout(backbone, picture, "internal").groups
    assert {group for group in groups if groups[group].partner is None} == set(plain)


class LowRank(nn.Module):
    """A layer as peft makes it, by its names."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, base.out_features, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_that_peft_put_into_a_network_are_known() -> None:
    network = small_vit()
    for block in network.blocks:
        block.up = LowRank(block.up)
    layout = traced(adopt(network, IMAGE))
    name = "blocks.0.up.lora_A.default"
    assert layout.groups[name].partner == "blocks.0.up.lora_B.default.weight"
    [first, second] = budgeted_levels(layout, [LevelBudget(rank=4), LevelBudget(rank=1)], PruningArgs())
    assert first.widths == {}
    assert second.widths == {name: 1, name.replace("0", "1"): 1}


def test_levels_are_ranks_and_shares_of_the_base() -> None:
    layout = traced(adapted())
    whole, middle, weak = budgeted_levels(layout, BUDGETS, PruningArgs())
    assert (whole.ratio, whole.widths) == (0, {})
    for level, budget in ((middle, BUDGETS[1]), (weak, BUDGETS[2])):
        assert all(level.widths[f"blocks.{b}.{name}.lora_a"] == budget.rank for b in range(2) for name in GROUPS)
        base = {name: width for name, width in level.widths.items() if "lora" not in name}
        assert 1 - count_parameters(layout, base) / count_parameters(layout, {}) == pytest.approx(budget.base, abs=0.05)
        assert level.ratio == round(1 - count_parameters(layout, level.widths) / count_parameters(layout, {}), 6)
    by_rank = budgeted_levels(layout, [LevelBudget(), LevelBudget(rank=3)], PruningArgs())
    # of rank 4 a component less for each of 12 adapters: 8 of 16 + 16 and, in `up` and `down`, 2 x 2 of 16 + 64
    assert by_rank[1].ratio == round((8 * 32 + 4 * 80) / count_parameters(layout, {}), 6)


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        ([LevelBudget(rank=5)], "level 1: rank 5 is more than the adapters have, 4"),
        ([LevelBudget(rank=4), LevelBudget()], "level 2: comes to the same as level 1"),
        ([LevelBudget(base=0.9)], "level 1, base: ratio 0.9 asks for 10.0 %"),
    ],
)
def test_a_budget_that_cannot_be_is_one_line(budgets: Sequence[LevelBudget], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        budgeted_levels(traced(adapted()), budgets, PruningArgs())
    assert "\n" not in str(error.value)


def test_a_rank_needs_adapters() -> None:
    layout = trace_layout(adopt(small_vit(), IMAGE), IMAGE, "internal")
    with pytest.raises(ConfigError, match="has a rank, and no adapter of this network can be cut"):
        budgeted_levels(layout, [LevelBudget(rank=2)], PruningArgs())


@pytest.mark.parametrize(
    "levels", [[{"rank": 4}, {"rank": 2, "base": 0.5}], {"budgets": [{"rank": 4}, {"rank": 2, "base": 0.5}]}]
)
def test_levels_in_a_file_are_a_list_of_budgets(levels: Any) -> None:
    args = check(Settings, {"dapper_args": {"levels": levels}}, where="a file").dapper_args.levels
    assert args.budgets == (LevelBudget(rank=4), LevelBudget(rank=2, base=0.5))
    assert len(args.ratios) == 2
    assert check(LevelArgs, args.model_dump(mode="json"), where="a file") == args
