"""Residual blocks with a learnable step size, and networks with fewer of them (NeFL)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedml_dapper.models import Backbone
from fedml_dapper.models.resnet import BasicBlock


class SteppedBlock(BasicBlock):
    """A residual block with a step size: Y = relu(shortcut(x) + s F(x)); ``step`` is s, of shape ()."""

    step: Tensor

    def __init__(self, block: BasicBlock, learnable: bool) -> None:
        nn.Module.__init__(self)  # takes over the layers of ``block`` instead of making new ones
        for name, layer in block.named_children():
            self.add_module(name, layer)
        self.of_sums = block.of_sums
        one = torch.ones((), device=block.conv1.weight.device)
        if learnable:
            self.step = nn.Parameter(one)
        else:
            self.register_buffer("step", one)

    def forward(self, x: Tensor) -> Tensor:
        return self.rectified_sum(self.step * self.residual(x), self.shortcut(x))


def with_steps(backbone: Backbone, learnable: bool) -> Backbone:
    """A copy in which every residual block has a step size of 1; tensors keep their names."""
    stepped = copy.deepcopy(backbone)
    blocks = {name: layer for name, layer in stepped.named_modules() if isinstance(layer, BasicBlock)}
    for name, block in blocks.items():
        stepped.set_submodule(name, SteppedBlock(block, learnable))
    return stepped


def block_stages(backbone: Backbone) -> list[list[str]]:
    """Names of the blocks with steps, by the container they stand in, in the order of the forward pass."""
    stages: dict[str, list[str]] = {}
    for name, layer in backbone.named_modules():
        if isinstance(layer, SteppedBlock):
            stages.setdefault(name.rpartition(".")[0], []).append(name)
    return list(stages.values())


def skippable_blocks(backbone: Backbone) -> list[str]:
    """Blocks that can be left out, deepest first: those that keep the shape, but for the first of a stage."""
    later = [name for stage in block_stages(backbone) for name in stage[1:]]
    return [name for name in later if isinstance(backbone.get_submodule(f"{name}.shortcut"), nn.Identity)][::-1]
