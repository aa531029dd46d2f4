"""Passing of inputs of several tensors to a module, in the way in which its ``forward`` takes them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from fedml_dapper.inputs import Inputs
from fedml_dapper.models.backbone import Backbone


def arguments(module: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """Return the positional and named arguments of ``module`` for ``inputs``.

    Several tensors are passed by name or by position if ``forward`` takes them so, and as one argument otherwise. A
    :class:`Backbone` always takes one argument.
    """
    if isinstance(inputs, Tensor) or isinstance(module, Backbone):
        return (inputs,), {}
    if isinstance(inputs, dict):
        return ((), inputs) if _takes(module, (), inputs) else ((inputs,), {})
    return (inputs, {}) if _takes(module, inputs, {}) else ((inputs,), {})


def called(module: nn.Module, inputs: Inputs) -> Any:
    """Return the output of ``module`` for ``inputs``."""
    positional, named = arguments(module, inputs)
    return module(*positional, **named)


def misfit(module: nn.Module, inputs: Inputs) -> str:
    """Return why ``forward`` cannot take several tensors; empty where it can."""
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
