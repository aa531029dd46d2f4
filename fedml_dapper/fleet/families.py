"""Families of networks by their layers: speeds measured on one family say little of another."""

from __future__ import annotations

from typing import Literal

from torch import nn

Family = Literal["convolutions", "depthwise", "attention", "linear"]


def family_of(network: nn.Module) -> Family:
    """Return the kind of layers that says most about how fast ``network`` trains.

    ``attention`` comes first, recognised by the class's name where it is not torch's. Next are ``depthwise``
    convolutions, with one input channel per group, which do little work for the memory that they move.
    """
    layers = list(network.modules())
    if any("attention" in type(layer).__name__.lower() for layer in layers):
        return "attention"
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if any(layer.groups == layer.in_channels > 1 for layer in convolutions):
        return "depthwise"
    return "convolutions" if convolutions else "linear"
