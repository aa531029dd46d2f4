"""FedDrop; what it shares with other sub-model methods is in test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment
from fedml_dapper.methods import Problem, ServerState
from fedml_dapper.methods.catalogue.feddrop import FedDrop
from fedml_dapper.pruning import PruningPlan

SettingsFactory = Callable[..., Settings]
STATE = ServerState(round=0, weights={}, profiles=())


@pytest.fixture
def problem(tiny_settings: SettingsFactory) -> Problem:
    return build_experiment(tiny_settings("method=feddrop")).method.problem


def feddrop(problem: Problem, **params: Any) -> FedDrop:
    return FedDrop(FedDrop.check_params(params), problem)


def plan(method: FedDrop, round_: int, client_id: int) -> PruningPlan:
    return method.plan(replace(STATE, round=round_ - 1), client_id)


def same(one: PruningPlan, other: PruningPlan) -> bool:
    return all(torch.equal(indices, other.kept[name]) for name, indices in one.kept.items())


def test_masks_repeat_and_differ_between_clients_rounds_and_seeds(problem: Problem) -> None:
    reference = plan(feddrop(problem), 1, 0)
    assert same(reference, plan(feddrop(problem), 1, 0))
    assert not same(reference, plan(feddrop(problem), 1, 1))
    assert not same(reference, plan(feddrop(problem), 2, 0))
    assert not same(reference, plan(feddrop(replace(problem, seed=2)), 1, 0))


def test_shared_mask_is_one_draw_a_round(problem: Problem) -> None:
    method = feddrop(problem, shared_mask=True)
    first = plan(method, 1, 0)
    assert all(same(first, plan(method, 1, client_id)) for client_id in (1, 2, 3))
    assert not same(first, plan(method, 2, 0))


def test_channels_are_kept_at_the_expected_rate_and_in_a_fixed_number(problem: Problem) -> None:
    problem = replace(problem, pruning=problem.pruning.model_copy(update={"ratio_of": "channels"}))
    method, group, rounds = feddrop(problem, uniform_rho=0.75), "stages.0.0.conv1", 1000
    kept = torch.zeros(8)
    for round_ in range(1, rounds + 1):
        indices = plan(method, round_, 0).kept[group]
        assert len(indices) == 2  # of 8
        kept[indices] += 1
    assert (kept / rounds).tolist() == pytest.approx([0.25] * 8, abs=0.05)  # 3.6 standard deviations


def test_everybody_drops_the_same_whatever_the_level(problem: Problem) -> None:
    dense = sum(parameter.numel() for parameter in problem.backbone.parameters())
    for uniform_rho, share in ((0.6, 0.4), ("max_level", 0.2)):
        method = feddrop(problem, uniform_rho=uniform_rho)
        costs = {method.footprint(ratio).parameters / dense for ratio in (0.0, 0.4, 0.8)}
        assert list(costs) == pytest.approx([share], abs=0.01)
        assert method.model_size(plan(method, 1, 0))[0] / dense in costs


@pytest.mark.parametrize(
    ("uniform_rho", "message"),
    [
        (1.0, "dapper_args.params.feddrop.uniform_rho: is 1.0; choose"),
        ("max", "dapper_args.params.feddrop.uniform_rho: is 'max'; choose"),
        (0.99, "dapper_args.params.feddrop.uniform_rho: ratio 0.99 asks for"),
    ],
)
def test_wrong_ratios_are_named(problem: Problem, uniform_rho: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feddrop(problem, uniform_rho=uniform_rho)
    assert message in str(caught.value)
