"""Sequences of unequal length, brought to the longest of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 0
"""What inputs are padded with: a token that a mask of zeros covers, or that nothing before it sees."""
NOT_A_TARGET = -100
"""What targets are padded with: it counts nowhere."""


def is_sequence(part: object) -> bool:
    """Return whether ``part`` of an item is a sequence, which may have any length: one axis of whole numbers or of
    true and false."""
    if isinstance(part, Tensor):
        return part.dim() == 1 and not part.is_floating_point() and not part.is_complex()
    return isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iub"


def padded(items: Sequence[object]) -> list[Any]:
    """Return items ``(input, target)`` whose sequences are as long as the longest of ``items`` at the same place.

    Inputs are padded with zeros, tokens and masks alike, and targets with -100, all of them behind. What differs in
    more than the length of sequences, or cannot hold -100, is returned as it is.
    """
    if not all(isinstance(item, list | tuple) and len(item) == 2 for item in items):
        return list(items)
    inputs = _longest_each([item[0] for item in items], PADDING)  # type: ignore[index]  # each is a pair
    targets = _longest_each([item[1] for item in items], NOT_A_TARGET)  # type: ignore[index]
    return list(zip(inputs, targets, strict=True))


def _longest_each(parts: Sequence[Any], value: int) -> Sequence[Any]:
    first = parts[0]
    if all(is_sequence(part) and _can_hold(value, part) for part in parts):
        return _to_longest(parts, value)
    if isinstance(first, Mapping) and all(isinstance(part, Mapping) and part.keys() == first.keys() for part in parts):
        columns = {name: _longest_each([part[name] for part in parts], value) for name in first}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(parts))]
    if isinstance(first, tuple) and all(isinstance(part, tuple) and len(part) == len(first) for part in parts):
        return list(zip(*(_longest_each(column, value) for column in zip(*parts, strict=True)), strict=True))
    return parts


def _can_hold(value: int, sequence: Any) -> bool:
    dtype = torch.as_tensor(sequence[:0]).dtype
    return value == 0 or (dtype != torch.bool and torch.iinfo(dtype).min <= value)


def _to_longest(parts: Sequence[Any], value: int) -> Sequence[Any]:
    longest = max(len(part) for part in parts)
    if all(len(part) == longest for part in parts):
        return parts  # arrays stay arrays
    return [F.pad(torch.as_tensor(part), (0, longest - len(part)), value=value) for part in parts]
