"""What a network is given: one tensor, or several by name or in order. Each has a row an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedml_dapper.errors import DataError

Inputs: TypeAlias = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""A batch's: (B, ...), or several of these. Names are in alphabetical order, so that order says which is which."""


def as_inputs(given: object) -> Inputs | None:
    """``given`` as inputs; None where it is anything but a tensor, or a mapping or sequence of some."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping):
        known = sorted((name, part) for name, part in given.items() if isinstance(name, str))
        return _if_tensors(dict(known), list(given.values()))
    if isinstance(given, list | tuple):
        return _if_tensors(tuple(given), given)
    return None


def tensors_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Its tensors, in order."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs.values()) if isinstance(inputs, dict) else inputs


def one_tensor(inputs: Inputs) -> Tensor:
    """Those that are one tensor; raises :class:`DataError` where they are several."""
    if not isinstance(inputs, Tensor):
        raise DataError(f"one tensor is needed as input, and these are {len(inputs)}; choose another network or method")
    return inputs


def mapped(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """What ``change`` makes of each of its tensors."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return like(inputs, [change(part) for part in tensors_of(inputs)])


def like(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """``tensors``, in order, under the names or in the places of those of ``inputs``."""
    if isinstance(inputs, Tensor):
        [tensor] = tensors
        return tensor
    return dict(zip(inputs, tensors, strict=True)) if isinstance(inputs, dict) else tuple(tensors)


def count(inputs: Inputs) -> int:
    """How many examples."""
    return len(tensors_of(inputs)[0])


def moved(inputs: Inputs, device: torch.device | str) -> Inputs:
    """The same on ``device``."""
    return mapped(inputs, lambda part: part.to(device))


def rows(inputs: Inputs, which: slice | Tensor) -> Inputs:
    """Those of some examples."""
    return mapped(inputs, lambda part: part[which])


def repeated(inputs: Inputs, times: int) -> Inputs:
    """The same examples ``times`` times, copied."""
    return mapped(inputs, lambda part: part.repeat(times, *[1] * (part.dim() - 1)))


def expanded(example: Inputs, size: int) -> Inputs:
    """A batch of ``size`` times the one example, without a copy."""
    return mapped(example, lambda part: part.expand(size, *part.shape[1:]))


def pieces(inputs: Inputs, size: int) -> list[Inputs]:
    """Consecutive parts of at most ``size`` examples."""
    if isinstance(inputs, Tensor):
        return list(torch.split(inputs, size))
    split = (torch.split(part, size) for part in tensors_of(inputs))
    return [like(inputs, piece) for piece in zip(*split, strict=True)]


def joined(several: Sequence[Inputs]) -> Inputs:
    """The examples of all, one after another."""
    first = several[0]
    columns = zip(*map(tensors_of, several), strict=True)
    return like(first, [torch.cat(column) for column in columns])


def described(inputs: Inputs, say: Callable[[Tensor], str]) -> str:
    """What ``say`` says of each of its tensors, with their names where they have some."""
    if isinstance(inputs, Tensor):
        return say(inputs)
    if isinstance(inputs, dict):
        return f"{{{', '.join(f'{name}: {say(part)}' for name, part in inputs.items())}}}"
    return f"({', '.join(map(say, inputs))})"


def with_numbers(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same but for its real numbers, of which there is what ``change`` makes of them; what counts or names, and
    masks beside other tensors, stay."""

    def changed(part: Tensor) -> Tensor:
        kept = not part.is_floating_point() or (not isinstance(inputs, Tensor) and is_mask(part))
        return part if kept else change(part)

    return mapped(inputs, changed)


def is_mask(part: Tensor) -> bool:
    """Whether it holds but zeros and ones: whatever else such a tensor held, networks would not know what to do."""
    return bool(((part == 0) | (part == 1)).all())


def _if_tensors(inputs: Inputs, parts: Sequence[object]) -> Inputs | None:
    """``inputs``, which hold ``parts``, where all of these are tensors with an axis of the batch's."""
    held = tensors_of(inputs)
    fit = bool(held) and len(held) == len(parts) and all(isinstance(part, Tensor) and part.dim() for part in held)
    return inputs if fit else None
