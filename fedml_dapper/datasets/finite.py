"""Inputs with NaN or infinity, which training would pass on to the whole model."""

from __future__ import annotations

import torch
from torch import Tensor

from fedml_dapper.inputs import Inputs, tensors_of

_MOST_NAMED = 5


def not_finite(inputs: Inputs) -> list[int]:
    """Return the rows of ``inputs`` that hold NaN or infinity."""
    found = set[int]()
    for part in map(at_least_two_bytes, tensors_of(inputs)):
        if part.is_floating_point() and not bool(torch.isfinite(part.sum())):
            found.update(torch.nonzero(~torch.isfinite(part).reshape(len(part), -1).all(dim=1)).flatten().tolist())
    return sorted(found)


def at_least_two_bytes(part: Tensor) -> Tensor:
    """Return floats of 8 bits, with which torch does not even add, as float32; others as they are."""
    return part.float() if part.is_floating_point() and part.element_size() == 1 else part


def say_not_finite(name: str, indices: list[int], of: int) -> str:
    """Return a one-line warning on such samples of the data set ``name``, which has ``of`` samples."""
    named = ", ".join(map(str, indices[:_MOST_NAMED])) + (", ..." if len(indices) > _MOST_NAMED else "")
    items = f"item {named} is" if len(indices) == 1 else f"{len(indices)} of {of} items ({named}) are"
    return (
        f"{name}: {items} not finite (NaN or infinity); a model that trains on such inputs becomes so as well, and what"
        " it predicts for them means nothing"
    )
