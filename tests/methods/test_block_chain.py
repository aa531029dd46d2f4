"""Chains of blocks: found, named, or refused in one line."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.parts.block_chain import BlockChain, chain_of
from fedml_dapper.models import example_image
from fedml_dapper.models.adopt import adopt
from fedml_dapper.models.resnet import ResNet

IMAGE = example_image(8)
SETTING = "profl.blocks"


class Numbered(nn.Module):
    """As torchvision's ResNets name them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 10)
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer2(self.layer1(self.conv1(x) * self.scale))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def chain(module: nn.Module, *names: str) -> BlockChain:
    return chain_of(adopt(module, IMAGE), IMAGE, names or None, SETTING)


def layers(*sizes: int) -> nn.Sequential:
    found = [(f"l{index}", nn.Linear(*pair)) for index, pair in enumerate(pairwise(sizes))]
    return nn.Sequential(OrderedDict([("flat", nn.Flatten()), *found]))


def test_a_resnet_is_its_stages() -> None:
    model = ResNet([1, 1, 1, 1], 4, 10)
    found = chain_of(model, IMAGE, None, SETTING)
    assert found.names == ("stages.0", "stages.1", "stages.2", "stages.3")
    assert [(call.takes, call.gives) for call in found.calls] == [
        ((4, 8, 8), (4, 8, 8)), ((4, 8, 8), (8, 4, 4)), ((8, 4, 4), (16, 2, 2)), ((16, 2, 2), (32, 1, 1))
    ]  # fmt: skip
    assert not any(call.goes_below_zero for call in found.calls)
    assert found.head == {"predictor.weight", "predictor.bias"}
    assert {name.partition(".")[0] for name in found.own[0]} == {"stem", "stages"}
    assert all(name.startswith("stages.2.") for name in found.own[2])
    assert found.head.union(*found.own) == model.state_dict().keys()
    assert found.of_blocks([2, 3]) == found.own[1] | found.own[2]


def test_numbered_layers_are_blocks_and_what_stands_in_front_is_the_first_s() -> None:
    found = chain(Numbered())
    assert found.names == ("layer1", "layer2")
    assert found.head == {"fc.weight", "fc.bias"}
    assert found.own[0] == {"scale", "conv1.weight", "conv1.bias", "layer1.0.weight", "layer1.0.bias"}
    assert [call.goes_below_zero for call in found.calls] == [False, True]


def test_the_network_stays_as_it_is() -> None:
    model = adopt(Numbered(), IMAGE).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    chain_of(model, IMAGE, None, SETTING)
    assert torch.equal(generator, torch.get_rng_state())
    assert model.training
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_blocks_can_be_named() -> None:
    found = chain(layers(192, 6, 5, 4, 10), "l0", "l1")
    assert found.own == ({"l0.weight", "l0.bias"}, {"l1.weight", "l1.bias"})
    assert found.head == {"l2.weight", "l2.bias", "l3.weight", "l3.bias"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "Sequential has no stages or blocks to train one after another; name modules of it in profl.blocks"),
        (("l0", "l9"), "profl.blocks: Sequential has no module `l9`"),
        (("l0", "l0"), "`l0` is named twice, or lies in another module that is named"),
        (("l1", "l0"), "`l0` of Sequential is not called once, in its turn, with one tensor for one tensor"),
        (("l0", "l2"), "`l1` of Sequential runs between two blocks and belongs to neither"),
        (("l0", "l1", "l2", "l3"), "behind `l3`, the last block of Sequential, there is no layer to train"),
    ],
)
def test_what_is_no_chain_is_refused_in_one_line(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        chain(layers(192, 6, 5, 4, 10), *names)
    assert "\n" not in str(caught.value)


def test_a_block_inside_another_or_without_a_part_is_refused() -> None:
    class Idle(Numbered):
        def __init__(self) -> None:
            super().__init__()
            self.layer3 = nn.Sequential(nn.Linear(4, 4))

    with pytest.raises(ConfigError, match="`layer3` has no part in the forward pass of Idle"):
        chain(Idle())
    with pytest.raises(ConfigError, match=r"`layer1\.0` is named twice, or lies in another"):
        chain(Numbered(), "layer1", "layer1.0")
