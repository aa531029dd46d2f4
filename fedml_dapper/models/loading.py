"""Tensors put into a network by name, as ``load_state_dict`` does, without its bookkeeping of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedml_dapper.models.in_bulk import copy_each

_PLAIN_WAYS = {nn.Module._load_from_state_dict, _NormBase._load_from_state_dict}
"""Ways of layers to take their tensors; the second also completes what old files lack."""


@torch.no_grad()
def put_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into the entries of those names of the network's state dict; the others stay.

    Raises ``RuntimeError``, as ``load_state_dict`` does, for a name or a shape that the network does not have.
    """
    state = network.state_dict()
    fits = all(name in state and state[name].shape == tensor.shape for name, tensor in tensors.items())
    if not fits or not all(map(_is_plain, network.modules())):
        network.load_state_dict({**state, **tensors})
        return
    copy_each(list(tensors.values()), [state[name] for name in tensors])


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer takes its tensors by copying them."""
    kind: Any = type(layer)
    has_hooks = layer._load_state_dict_pre_hooks or layer._load_state_dict_post_hooks
    return not has_hooks and _is_plain_kind(kind)


@cache
def _is_plain_kind(kind: Any) -> bool:
    return (
        kind._load_from_state_dict in _PLAIN_WAYS
        and kind.load_state_dict is nn.Module.load_state_dict
        and kind.set_extra_state is nn.Module.set_extra_state
    )
