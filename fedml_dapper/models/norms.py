"""Normalisation layers, found by their type."""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedml_dapper.models.standardised import StandardisedConv2d

BatchNorm = _BatchNorm
"""Every BatchNorm: of any dimensions, synchronised, lazy or derived by the user."""
InstanceNorm = _InstanceNorm
"""Every InstanceNorm: of any dimensions, lazy or derived by the user."""
WITHOUT_BATCHES = (nn.GroupNorm, nn.LayerNorm, InstanceNorm, nn.RMSNorm)
"""Norms that look at one sample at a time."""
NORMS = (BatchNorm, *WITHOUT_BATCHES)
"""All norms."""


def norm_tensors(model: nn.Module) -> frozenset[str]:
    """Return the state-dict entries of all norms, and gains and biases of standardised convolutions."""
    found = set()
    for name in model.state_dict():
        layer_name, _, entry = name.rpartition(".")
        layer = model.get_submodule(layer_name)
        if _is_norm(layer) or (isinstance(layer, StandardisedConv2d) and entry != "weight"):
            found.add(name)
    return frozenset(found)


def _is_norm(layer: nn.Module) -> bool:
    """Whether ``layer`` is one of torch's norms, or by its name one of another library, such as Llama's."""
    if isinstance(layer, NORMS):
        return True
    named_so = re.search("Norm(?!al)", type(layer).__name__) is not None and not any(layer.children())
    return named_so and all(parameter.dim() == 1 for parameter in layer.parameters())
