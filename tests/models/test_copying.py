"""Copies of networks around the same tensors, held against deepcopy's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedml_dapper.models.adopt import AdoptedBackbone
from fedml_dapper.models.copying import with_same_tensors


class Tied(nn.Module):
    """Shares a weight, refers to a layer twice, and keeps things that are not layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.aside = [self.first]
        self.history: dict[str, list[int]] = {"widths": [4]}
        self.scale = self.double_it
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("none", None)

    def double_it(self, inputs: Tensor) -> Tensor:
        self.history["widths"].append(len(inputs))
        return inputs * 2

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.scale(self.last(self.aside[0](inputs))) + self.mean
        return outputs


class OwnCopy(nn.Linear):
    """Copies itself in a way of its own."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.copied = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCopy:
        other = OwnCopy()
        other.copied = self.copied + 1
        other.weight = memo.get(id(self.weight), self.weight)
        other.bias = memo.get(id(self.bias), self.bias)
        return other


class Restored(nn.Linear):
    """Makes something anew when it is restored from its state."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.cache: list[str] = ["old"]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.cache = ["new"]


def compiled() -> nn.Module:
    """A network that torch.compile has wrapped: what is around it knows the network's layers, and not the wrapper."""
    network = nn.Sequential(nn.Linear(4, 4))
    return AdoptedBackbone(torch.compile(network, backend="eager"), ["_orig_mod.0"], "_orig_mod.0")  # type: ignore[arg-type]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(3)),
    "tied": Tied,
    "lstm": lambda: nn.LSTM(4, 4),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "parametrized": lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))),
    "own copy": lambda: nn.Sequential(OwnCopy()),
    "restored": lambda: nn.Sequential(Restored()),
    "compiled": compiled,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_is_what_deepcopy_makes(name: str) -> None:
    network = NETWORKS[name]().eval()
    made = with_same_tensors(network)
    expected = copy.deepcopy(network, {id(each): each for each in (*network.parameters(), *network.buffers())})
    assert repr(made) == repr(expected)
    assert [*map(id, made.parameters())] == [*map(id, expected.parameters())] == [*map(id, network.parameters())]
    assert [*map(id, made.buffers())] == [*map(id, network.buffers())]
    for ours, theirs, original in zip(made.modules(), expected.modules(), network.modules(), strict=True):
        assert type(ours) is type(theirs)
        assert ours is not original
        assert vars(ours).keys() == vars(theirs).keys()
        held = [value for value in vars(original).values() if isinstance(value, list | dict | set)]
        assert not {*map(id, held)} & {*map(id, vars(ours).values())}, "a container that both would change"


def test_a_copy_of_a_compiled_network_computes_with_layers_of_its_own() -> None:
    network = compiled()
    made = with_same_tensors(network)
    assert made(torch.ones(2, 4)).equal(network(torch.ones(2, 4)))
    with torch.no_grad():
        made.get_submodule("_orig_mod.0").weight = nn.Parameter(torch.zeros(4, 4))
        assert not made(torch.ones(2, 4)).equal(network(torch.ones(2, 4)))


def test_a_copy_refers_to_itself_alone() -> None:
    network = Tied()
    made = with_same_tensors(network)
    assert made.aside[0] is made.first
    assert made.scale.__self__ is made  # type: ignore[attr-defined]  # a method's
    made(torch.ones(2, 4))
    assert network.history == {"widths": [4]}
    assert made.history == {"widths": [4, 2]}
    assert made.last.weight is made.first.weight


def test_what_is_put_into_a_copy_stays_there() -> None:
    network = nn.Sequential(nn.Linear(4, 4))
    made = with_same_tensors(network)
    made[0].weight = nn.Parameter(torch.zeros(4, 4))
    made.append(nn.ReLU())
    assert len(network) == 1
    assert not network[0].weight.equal(made[0].weight)


def test_a_layer_with_ways_of_its_own_keeps_them() -> None:
    assert with_same_tensors(nn.Sequential(OwnCopy()))[0].copied == 1
    assert with_same_tensors(nn.Sequential(Restored()))[0].cache == ["new"]


class Scaled(nn.Module):
    """Has a parameter and a buffer beside its layer, and uses them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) * self.scale
        return outputs


def test_a_wrapper_s_copy_shares_all_tensors_with_the_network_that_it_wraps() -> None:
    wrapper = AdoptedBackbone(Scaled(), ["layer"], "layer")
    copied = with_same_tensors(wrapper)
    for register in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        assert vars(copied)[register] is vars(copied.module)[register]
        assert vars(copied)[register] is not vars(wrapper)[register]
    copied._parameters["scale"] = nn.Parameter(torch.zeros(1))
    assert not copied(torch.ones(2, 4)).any()
    assert wrapper(torch.ones(2, 4)).any()
