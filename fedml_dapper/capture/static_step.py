"""A step over tensors of its own, whose values are exchanged with those of any step of the same fingerprint."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial, singledispatch
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from fedml_dapper.capture.eager import TrainingStep
from fedml_dapper.capture.reading import NotCapturableError, Reading, read
from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import mapped, tensors_of
from fedml_dapper.models.in_bulk import copy_each


class StaticStep:
    """A copy of a step that stays where it is in memory."""

    def __init__(self, step: TrainingStep, reading: Reading) -> None:
        self.step: TrainingStep = _copy_of_step(step, {id(constant): constant for constant in reading.constants})
        own = read(self.step)
        shared = {*map(id, own.tensors)} & {*map(id, reading.tensors)}
        if own.fingerprint != reading.fingerprint or shared:
            raise NotCapturableError("cannot be copied as a whole")
        self.tensors = own.tensors
        for group in self.step.optimizer.param_groups:
            if self.tensors[0].is_cuda:  # a graph would keep the number itself
                group["lr"] = torch.tensor(float(group["lr"]), device=self.tensors[0].device)

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of a step's ``tensors``."""
        copy_each(tensors, self.tensors)

    def set_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the learning rates of ``optimizer``."""
        for own, group in zip(self.step.optimizer.param_groups, optimizer.param_groups, strict=True):
            if isinstance(own["lr"], Tensor):
                own["lr"].fill_(group["lr"])
            else:
                own["lr"] = group["lr"]

    @torch.no_grad()
    def hand_back(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values into the first of a step's tensors, ``tensors``, which are those that it writes."""
        copy_each(self.tensors[: len(tensors)], tensors)


class StaticBatch:
    """A batch that stays where it is in memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = Batch(mapped(batch.inputs, torch.clone), batch.targets.clone())

    def fill(self, batch: Batch) -> None:
        """Copy the values of a batch of the same shape."""
        for own, given in zip(tensors_of(self.batch.inputs), tensors_of(batch.inputs), strict=True):
            own.copy_(given)
        self.batch.targets.copy_(batch.targets)


def _copy_of_step(step: Any, memo: dict[int, Any]) -> Any:
    """Copy the fields of ``step`` in their order, the model before what refers to it."""
    return replace(step, **{each.name: _copied(getattr(step, each.name), memo) for each in fields(step)})


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Copy ``value`` as :func:`copy.deepcopy` does, and what functions hold of it as well."""
    return memo[id(value)] if id(value) in memo else _copy_of(value, memo)


@singledispatch
def _copy_of(value: Any, memo: dict[int, Any]) -> Any:
    return copy.deepcopy(value, memo)


@_copy_of.register
def _(method: MethodType, memo: dict[int, Any]) -> MethodType:
    return MethodType(method.__func__, _copied(method.__self__, memo))


@_copy_of.register(partial)
def _(given: partial[Any], memo: dict[int, Any]) -> partial[Any]:
    args = (_copied(each, memo) for each in given.args)
    return partial(_copied(given.func, memo), *args, **_copied(given.keywords, memo))


@_copy_of.register
def _(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    if not function.__closure__:
        return function
    cells = tuple(CellType() for _ in function.__closure__)
    own = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    own.__kwdefaults__ = function.__kwdefaults__
    own.__module__ = function.__module__  # of a decorated function another than its code's
    vars(own).update(vars(function))
    memo[id(function)] = own  # before its cells, one of which may hold it
    for cell, held in zip(cells, function.__closure__, strict=True):
        cell.cell_contents = _copied(held.cell_contents, memo)
    return own
