"""Copies of a network around the same tensors, as ``copy.deepcopy`` would make them, in a seventh of its time.

Every client of a round gets a network of its own, so that with small networks copying is much of a round: deepcopy
looks at each of the twenty attributes that a layer has whether there is anything to copy.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from fedml_dapper.models.adopt import bare

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_CONTAINERS = frozenset({dict, OrderedDict, set, tuple, list})
_HELD = ("_parameters", "_buffers", "_modules")
_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
_OWN_WAYS = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__new__", "__getnewargs__")


def with_same_tensors(model: ModuleT) -> ModuleT:
    """Return a copy of ``model`` that shares its parameters and buffers: all else is as deep as deepcopy makes it."""
    modules = list(model.modules())
    held = (each for module in modules for each in (*module._parameters.values(), *module._buffers.values()))
    memo: dict[int, Any] = {id(tensor): tensor for tensor in held if tensor is not None}
    kinds: set[Any] = {type(module) for module in (*modules, bare(model))}
    if not all(map(_is_plain, kinds)) or any(module._compiled_call_impl is not None for module in modules):
        return copy.deepcopy(model, memo)
    for module in modules:  # all of them first, as layers may refer to one another
        memo[id(module)] = object.__new__(type(module))
    for module in modules:
        own = vars(memo[id(module)])
        for name, attribute in vars(module).items():
            own[name] = attribute if type(attribute) in _IMMUTABLE else _copied(name, attribute, memo)
    made: ModuleT = memo[id(model)]
    return made


def _copied(name: str, held: Any, memo: dict[int, Any]) -> Any:
    kind = type(held)
    if (known := memo.get(id(held))) is not None:  # as a network that is wrapped shares its tensors with the wrapper
        return known
    if kind is tuple and all(type(part) in _IMMUTABLE for part in held):
        return held
    if kind in _CONTAINERS and not held:
        memo[id(held)] = kind()
    elif name in _HELD and kind is dict:
        memo[id(held)] = {key: None if part is None else memo[id(part)] for key, part in held.items()}
    else:
        return copy.deepcopy(held, memo)
    return memo[id(held)]


@cache
def _is_plain(kind: Any) -> bool:
    """Return whether deepcopy copies the attributes of such a layer and does nothing else.

    Torch's own ``__setstate__`` completes what old files lack, and finds nothing to do in a copy.
    """
    is_torch_s = _origin(kind, "__setstate__").startswith("torch.")
    return is_torch_s and all(getattr(kind, name, None) == getattr(nn.Module, name, None) for name in _OWN_WAYS)


def _origin(kind: type, name: str) -> str:
    """Return the module of the class from which ``kind`` has the attribute ``name``."""
    return next(base.__module__ for base in kind.__mro__ if name in vars(base))
