"""What a training step reads and writes besides its batch: a fingerprint, and tensors in a fixed order.

Two steps of one fingerprint do the same to their tensors, each to the one in the same place of the order. So what was
recorded with the tensors of one can be replayed with the values of the other.
"""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial, singledispatch
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.memory_format)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "_compiled_call_impl"} - {"training"})
_ATOMS = frozenset({str, type(None)})
"""Types whose values are equal only among themselves, unlike 1, 1.0 and True."""


class Unchanging:
    """Base of classes whose objects training reads, and never changes: such an object is told by its identity."""


class NotCapturableError(Exception):
    """A step cannot be captured; the text says why, going on after "it"."""


class Fingerprint:
    """What tells two values apart: thousands of parts in a tree, whose hash is computed once."""

    def __init__(self, parts: Hashable) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._hash == other._hash and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Reading:
    """What was read of a value."""

    fingerprint: Fingerprint
    tensors: tuple[Tensor, ...]
    constants: tuple[Unchanging, ...]
    """The objects that are told by their identity, which lasts as long as somebody holds them."""


def read(value: object) -> Reading:
    """Return the reading of ``value``; raise :class:`NotCapturableError` where it holds what cannot be told."""
    reader = _Reader()
    fingerprint = Fingerprint(reader.read(value))
    return Reading(fingerprint, tuple(reader.tensors), tuple(reader.constants))


class _Reader:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.constants: list[Unchanging] = []
        self._seen: dict[int, int] = {}
        """Number of each object that can be met again, by its identity: aliases are part of a fingerprint."""
        self._alive: list[object] = []

    def read(self, value: Any) -> Hashable:
        kind: Any = type(value)
        if isinstance(value, _PLAIN):
            return kind, value
        if isinstance(value, list | tuple):
            return kind, tuple(map(self.read, value))
        if isinstance(value, set | frozenset):
            return kind, frozenset(map(self.read, value))
        number = len(self._alive)
        if (before := self._seen.setdefault(id(value), number)) != number:
            return "seen", before
        self._alive.append(value)
        return kind, _rule_for(kind)(value, self)


@singledispatch
def _read_as(value: Any, reader: _Reader) -> Hashable:
    """Return the fingerprint of what has no rule of its own: field by field, or as bytes."""
    params = getattr(value, "__dataclass_params__", None)
    if params is not None and params.frozen:
        return tuple(reader.read(getattr(value, each.name)) for each in fields(value))
    return _pickled(value)


@_read_as.register
def _(value: Unchanging, reader: _Reader) -> Hashable:
    reader.constants.append(value)
    return id(value)


@_read_as.register
def _(tensor: Tensor, reader: _Reader) -> Hashable:
    if not tensor.is_leaf or tensor.layout is not torch.strided:
        raise NotCapturableError("reads a tensor that is sparse, or was computed with gradients")
    reader.tensors.append(tensor)
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


@_read_as.register(Mapping)
def _(mapping: Mapping[Any, Any], reader: _Reader) -> Hashable:
    return tuple((reader.read(key), reader.read(part)) for key, part in mapping.items())


@_read_as.register
def _(module: nn.Module, reader: _Reader) -> Hashable:
    held = vars(module)
    if any(held[hooks] for hooks in _HOOKS):
        raise NotCapturableError(f"has hooks, in a {type(module).__name__}")
    attributes = tuple(
        (name, part if type(part) in _ATOMS else reader.read(part))
        for name, part in held.items()
        if name not in _OF_EVERY_MODULE
    )
    tensors = (reader.read(part) for name in ("_parameters", "_buffers") for part in held[name].values())
    return *held["_parameters"], *held["_buffers"], *tensors, reader.read(held["_modules"]), attributes


@_read_as.register
def _(optimizer: torch.optim.Optimizer, reader: _Reader) -> Hashable:
    """Its groups with all but learning rates, which may change, and what it remembers of each parameter."""
    groups = [{name: part for name, part in group.items() if name != "lr"} for group in optimizer.param_groups]
    stepped = [parameter for group in groups for parameter in group["params"]]
    return reader.read(groups), reader.read([optimizer.state.get(parameter, {}) for parameter in stepped])


@_read_as.register
def _(function: FunctionType, reader: _Reader) -> Hashable:
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError as error:  # a variable that the function reads and that has no value yet
        raise NotCapturableError(f"reads a function, {function.__name__}, whose variables are not all set") from error
    parts = (cells, function.__defaults__, function.__kwdefaults__, vars(function))
    return function.__code__, function.__module__, reader.read(parts)


@_read_as.register
def _(method: MethodType, reader: _Reader) -> Hashable:
    return reader.read(method.__func__), reader.read(method.__self__)


@_read_as.register(partial)
def _(given: partial[Any], reader: _Reader) -> Hashable:
    return reader.read(given.func), reader.read(given.args), reader.read(given.keywords)


@_read_as.register
def _(model: BaseModel, reader: _Reader) -> Hashable:
    return reader.read(dict(model))


@_read_as.register(type)
@_read_as.register(BuiltinFunctionType)
def _(named: Hashable, reader: _Reader) -> Hashable:
    return named


@cache
def _rule_for(kind: Any) -> Callable[[Any, _Reader], Hashable]:
    """Return the rule for values of a type, which singledispatch looks up more slowly."""
    return _read_as.dispatch(kind)


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    try:
        _WithoutTensors(file).dump(value)
    except Exception as error:  # whatever a user's object raises
        raise NotCapturableError(
            f"reads an object of {type(value).__name__}, which could change while it trains"
        ) from error
    return file.getvalue()


class _WithoutTensors(pickle.Pickler):
    def persistent_id(self, value: object) -> None:
        if isinstance(value, Tensor | nn.Module):
            raise pickle.PicklingError("it holds tensors")
