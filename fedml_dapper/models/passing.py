"""How inputs of several tensors are handed to a module: as its ``forward`` takes them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from fedml_dapper.inputs import Inputs
from fedml_dapper.models.backbone import Backbone


def arguments(module: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """Positional and named arguments of ``module`` for ``inputs``.

    Several tensors are handed over by name or by position where ``forward`` takes them so, and as one argument where it
    does not. A :class:`Backbone` takes one.
    """
    if isinstance(inputs, Tensor) or isinstance(module, Backbone):
        return (inputs,), {}
    if isinstance(inputs, dict):
        return ((), inputs) if _takes(module, (), inputs) else ((inputs,), {})
    return (inputs, {}) if _takes(module, inputs, {}) else ((inputs,), {})


def called(module: nn.Module, inputs: Inputs) -> Any:
    """What ``module`` gives for ``inputs``."""
    positional, named = arguments(module, inputs)
    return module(*positional, **named)


def misfit(module: nn.Module, inputs: Inputs) -> str:
    """What keeps ``forward`` from taking several tensors, in words; empty where nothing does."""
    if isinstance(inputs, Tensor) or _takes(module, *arguments(module, inputs)):
        return ""
    entries = ", ".join(inputs) if isinstance(inputs, dict) else f"{len(inputs)} tensors"
    return (
        f"its forward{inspect.signature(module.forward)} takes neither the inputs' entries ({entries}) nor all of them"
        " as one argument"
    )


def _takes(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Tensor]) -> bool:
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # some written in C have none
        return not named and len(positional) == 1
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True
