"""Optimizers of torch without the compiler that they load: nothing here is compiled.

What ``torch.compile`` is not to look into is wrapped in torch by a function that imports all of it: 1.3 s of the
processor and 150 MB for every process that trains, though it compiles nothing.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch.optim import Optimizer

OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
_WRAPPED = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")


def uncompiled(kind: type[OptimizerT]) -> type[OptimizerT]:
    """A subclass of ``kind`` by the same arithmetic; ``differentiable`` has no effect."""
    made: type[OptimizerT] = _uncompiled(cast("Any", kind))
    return made


@cache
def _uncompiled(kind: Any) -> Any:
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "__module__": kind.__module__})
