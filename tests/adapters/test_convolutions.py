"""Adapters of convolutions, as peft puts them into a network: products over all positions of a filter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import LevelBudget, PruningArgs, TrainArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods import METHODS, Method, Problem
from fedml_dapper.methods.parts.adapter_products import product
from fedml_dapper.models import adopt

from .by_hand import close_round, server_of
from .by_hand import upload as upload_of

EXAMPLE = torch.ones(1, 3, 8, 8)
A = "second.lora_A.default.weight"
B = "second.lora_B.default.weight"


class LowRank(nn.Module):
    """A convolution as peft makes it, by its names."""

    def __init__(self, base: nn.Conv2d) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Conv2d(base.in_channels, 2, 3, padding=1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Conv2d(2, base.out_channels, 1, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1).requires_grad_(False)
        self.second = LowRank(nn.Conv2d(6, 4, 3, padding=1))
        self.head = nn.Linear(4, 2)
        self.shift = nn.Parameter(torch.zeros(1, 6, 1, 1), requires_grad=False)  # so that channels are followed

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x) + self.shift))).mean((2, 3)))


def method_of(name: str, *budgets: LevelBudget) -> Method[Any]:
    problem = Problem(
        adopt(Convolutions(), EXAMPLE), EXAMPLE, TrainArgs(), PruningArgs(), uniform_weights=False, seed=1,
        ratios=(0.0,) * len(budgets), budgets=budgets,
    )  # fmt: skip
    return METHODS[name](METHODS[name].check_params({}), problem.with_ratios_of_budgets())


@pytest.mark.parametrize("name", ["flexlora", "raflora", "hetlora"])
def test_one_client_s_product_is_the_next_model_s(name: str) -> None:
    method = method_of(name, LevelBudget(rank=2))
    server = server_of(method, samples=(1,))
    a = torch.randn(2, 6, 3, 3)
    b = torch.randn(4, 2, 1, 1)
    downlink = method.downlink(server, 0)
    sent = replace(upload_of(method, server, 0), weights={**downlink.weights, A: a, B: b})
    after = close_round(method, server, [sent]).weights
    assert (after[A].shape, after[B].shape) == (a.shape, b.shape)
    torch.testing.assert_close(product(after[A], after[B]), product(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["flexlora", "raflora"])
def test_positions_of_a_filter_go_with_its_input(name: str) -> None:
    method = method_of(name, LevelBudget(rank=2), LevelBudget(rank=2, base=0.2))
    server = server_of(method, samples=(1, 3))
    whole = upload_of(method, server, 0)
    narrow = upload_of(method, server, 1)
    kept = narrow.plan.kept["first"]
    assert 0 < len(kept) < 6
    tripled = replace(narrow, weights={**narrow.weights, B: 3 * narrow.weights[B]})
    after = close_round(method, server, [whole, tripled]).weights
    before = product(server_of(method, (1, 3)).weights[A], whole.weights[B]).view(4, 6, 9)
    found = product(after[A], after[B]).view(4, 6, 9)
    others = [channel for channel in range(6) if channel not in kept.tolist()]
    # where both have an input (1 x 1 + 3 x 3) / 4 = 2.5 of the product; elsewhere that of client 0
    torch.testing.assert_close(found[:, kept], 2.5 * before[:, kept], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, others], before[:, others], rtol=1e-5, atol=1e-5)


def test_flora_knows_the_package_s_own_adapters_alone() -> None:
    with pytest.raises(ConfigError, match=r"those of model_args\.adapter alone, not `second\.lora_A") as refused:
        method_of("flora", LevelBudget(rank=2))
    assert "\n" not in str(refused.value)
