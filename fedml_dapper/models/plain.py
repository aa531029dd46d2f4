"""Convolutions with a forward pass of their own, and their plain equivalents for other runtimes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class RewrittenConv(nn.Conv2d, ABC):
    """A convolution with a forward pass of its own."""

    @abstractmethod
    def plain(self) -> nn.Conv2d:
        """Return a convolution of torch that gives the same outputs."""


def with_plain_convolutions(network: ModuleT) -> ModuleT:
    """Return a copy of ``network`` with the plain equivalent of every :class:`RewrittenConv`."""
    copied = copy.deepcopy(network)
    for name, layer in list(copied.named_modules()):
        if isinstance(layer, RewrittenConv):
            copied.set_submodule(name, layer.plain())
    return copied


@torch.no_grad()
def like(layer: nn.Conv2d, weight: Tensor) -> nn.Conv2d:
    """Return torch's convolution of the shape and bias of ``layer``, with the filters ``weight``."""
    kernel, stride, dilation = (
        cast("tuple[int, int]", sizes) for sizes in (layer.kernel_size, layer.stride, layer.dilation)
    )
    padding = cast("str | tuple[int, int]", layer.padding)
    plain = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        kernel,
        stride,
        padding,
        dilation,
        layer.groups,
        layer.bias is not None,
        layer.padding_mode,
        device=weight.device,
        dtype=weight.dtype,
    )
    plain.weight.copy_(weight)
    if plain.bias is not None and layer.bias is not None:
        plain.bias.copy_(layer.bias)
    return plain.train(layer.training)
