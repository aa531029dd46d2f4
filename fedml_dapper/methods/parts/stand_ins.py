"""Single layers that stand in for the blocks of a network (ProFL).

Blocks keep their names, and stand-ins are added beside them, so that one state dict holds all that any part of the
chain needs.
"""

from __future__ import annotations

import copy
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.parts.block_chain import BlockChain, Call
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.models.resnet import NORMALISATIONS, ResNet

STAND_INS = "stand_ins"
"""Name of the module that holds what stands in for blocks, by the block's number."""


def stand_in_of(number: int) -> str:
    """Return what the state-dict entries of a block's stand-in begin with."""
    return f"{STAND_INS}.{number}."


def with_stand_ins(backbone: Backbone, chain: BlockChain, kernel: int) -> Backbone:
    """Return a copy of ``backbone`` with a stand-in beside each block but the first.

    A stand-in has the shapes of the block's input and output: a convolution of ``kernel`` x ``kernel`` with the
    network's norm for maps of channels, a linear layer for vectors; then ReLU, where no entry of the block's output is
    negative. The network itself does not call it.

    Raises:
        ConfigError: No such layer has the shapes of one of the blocks.
    """
    whole = copy.deepcopy(backbone)
    stand_ins = {
        str(number): _stand_in(call, whole, kernel, name)
        for number, (name, call) in enumerate(zip(chain.names, chain.calls, strict=True), start=1)
        if number > 1
    }
    whole.add_module(STAND_INS, nn.ModuleDict(stand_ins).to(next(whole.parameters()).device))
    return whole


def shortened(whole: Backbone, chain: BlockChain, depth: int, *, teaches: bool) -> Backbone:
    """Return a copy of ``whole`` in which stand-ins take the place of the blocks behind the first ``depth``.

    With ``teaches`` the last block that stays has its own stand-in beside it, which :func:`distance` tells apart from
    it. Stand-ins of other blocks that stay are left out.
    """
    cut = copy.deepcopy(whole)
    stand_ins = cast(nn.ModuleDict, cut.get_submodule(STAND_INS))
    for number, name in enumerate(chain.names, start=1):
        key = str(number)
        if number > depth:
            cut.set_submodule(name, _Standing(stand_ins[key]))
        elif number == depth and teaches:
            cut.set_submodule(name, _Teaching(cut.get_submodule(name), stand_ins[key]))
        elif key in stand_ins:
            del stand_ins[key]
    return cut


def distance(model: nn.Module) -> Tensor:
    """Return how far the stand-in beside the teaching block was from it in the last pass of training, of shape ().

    It is the mean square over all entries of the output. Its gradients reach the stand-in alone.
    """
    return next(module for module in model.modules() if isinstance(module, _Teaching)).take_distance()


class _Standing(nn.Module):
    """A stand-in in a block's place; its tensors have their names where the stand-ins are kept."""

    def __init__(self, stand_in: nn.Module) -> None:
        super().__init__()
        self.__dict__["_stand_in"] = stand_in

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.__dict__["_stand_in"](x)
        return output


class _Teaching(nn.Module):
    """A block with its stand-in beside it, which in training is shown what the block makes of its input.

    Layers and tensors are the block's own, under its names.
    """

    def __init__(self, block: nn.Module, stand_in: nn.Module) -> None:
        super().__init__()
        own = self.__dict__
        own["_block"] = block
        own["_stand_in"] = stand_in
        own["_distance"] = None
        for register in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[register] = block.__dict__[register]

    def forward(self, x: Tensor) -> Tensor:
        own = self.__dict__
        seen = x.detach().clone() if self.training else None  # a block may begin with a layer that works in place
        output: Tensor = own["_block"](x)
        if seen is not None:
            own["_distance"] = F.mse_loss(own["_stand_in"](seen), output.detach().clone())
        return output

    def train(self, mode: bool = True) -> _Teaching:
        self.__dict__["_block"].train(mode)
        self.training = mode
        return self

    def take_distance(self) -> Tensor:
        """Return the distance of the last pass, and forget it."""
        found: Tensor | None = self.__dict__["_distance"]
        assert found is not None, "the block has not run in training"
        self.__dict__["_distance"] = None
        return found


def _stand_in(call: Call, network: Backbone, kernel: int, name: str) -> nn.Module:
    behind = nn.Identity() if call.goes_below_zero else nn.ReLU()
    if len(call.takes) == len(call.gives) == 3:
        stride = max(1, round(call.takes[-1] / call.gives[-1]))
        reached = tuple((side - 1) // stride + 1 for side in call.takes[1:])
        if reached == call.gives[1:]:
            return nn.Sequential(*_convolution(network, call.takes[0], call.gives[0], kernel, stride), behind)
    elif call.takes[:-1] == call.gives[:-1] and call.gives:
        return nn.Sequential(nn.Linear(call.takes[-1], call.gives[-1]), behind)
    raise ConfigError(
        f"model_args.model: no single layer can stand in for `{name}` of {network.label}, which makes"
        f" {_shape(call.gives)} of {_shape(call.takes)}; choose another method"
    )


def _convolution(network: Backbone, narrow: int, wide: int, kernel: int, stride: int) -> list[nn.Module]:
    padding = kernel // 2
    if isinstance(network, ResNet):
        norm = NORMALISATIONS[network.norm]
        return [norm.conv(narrow, wide, kernel, stride, padding=padding), norm.behind(wide)]
    has_batchnorm = any(isinstance(layer, BatchNorm) for layer in network.modules())
    convolution = nn.Conv2d(narrow, wide, kernel, stride, padding, bias=not has_batchnorm)
    return [convolution, nn.BatchNorm2d(wide)] if has_batchnorm else [convolution]


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes)) or "one number"
