"""Tensors put into networks, held against ``load_state_dict``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedml_dapper.models.loading import put_tensors


class Halved(nn.Linear):
    """Takes its tensors in a way of its own."""

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict({name: value / 2 for name, value in state_dict.items()}, prefix, *others)


def hooked() -> nn.Module:
    made = nn.Linear(4, 4)
    made.register_load_state_dict_pre_hook(lambda layer, state, *others: state.update(bias=torch.full((4,), 7.0)))
    return made


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "norms": lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)),
    "lstm": lambda: nn.LSTM(4, 4),
    "parametrized": lambda: weight_norm(nn.Linear(4, 4)),
    "own way": lambda: nn.Sequential(Halved(4, 4)),
    "hooked": hooked,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_takes_what_load_state_dict_gives(name: str) -> None:
    network = NETWORKS[name]()
    expected = copy.deepcopy(network)
    tensors = {name: tensor * 3 + 1 for name, tensor in network.state_dict().items()}
    held = [*map(id, network.parameters())]
    put_tensors(network, tensors)
    expected.load_state_dict(tensors)
    assert [*map(id, network.parameters())] == held
    for entry, tensor in expected.state_dict().items():
        assert network.state_dict()[entry].equal(tensor), entry


def test_what_is_not_named_stays() -> None:
    network = nn.Linear(4, 4)
    before = network.weight.detach().clone()
    put_tensors(network, {"bias": torch.ones(4)})
    assert network.weight.equal(before)
    assert network.bias.equal(torch.ones(4))


@pytest.mark.parametrize("tensors", [{"bias": torch.ones(1)}, {"bias": torch.ones(4, 4)}, {"gain": torch.ones(4)}])
def test_what_does_not_fit_is_refused(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict"):
        put_tensors(nn.Linear(4, 4), tensors)
