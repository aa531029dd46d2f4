"""Inputs of a network: one tensor, or several by name or in order, with one row per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedml_dapper.errors import DataError

Inputs: TypeAlias = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""Inputs of a batch: a tensor (B, ...), or several. Names are in alphabetical order, so that tensors can be told apart
by their order."""


def as_inputs(value: object) -> Inputs | None:
    """Return ``value`` as inputs; None where it is neither a tensor nor a mapping or sequence of tensors."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        known = sorted((name, part) for name, part in value.items() if isinstance(name, str))
        return _if_tensors(dict(known), list(value.values()))
    if isinstance(value, list | tuple):
        return _if_tensors(tuple(value), value)
    return None


def tensors_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of ``inputs``, in order."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs.values()) if isinstance(inputs, dict) else inputs


def one_tensor(inputs: Inputs) -> Tensor:
    """Return ``inputs`` that are one tensor; raise :class:`DataError` where they are several."""
    if not isinstance(inputs, Tensor):
        raise DataError(f"one tensor is needed as input, and these are {len(inputs)}; choose another network or method")
    return inputs


def mapped(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs with ``change`` applied to each tensor."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return like(inputs, [change(part) for part in tensors_of(inputs)])


def like(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Return ``tensors``, in order, under the names or in the places of those of ``inputs``."""
    if isinstance(inputs, Tensor):
        [tensor] = tensors
        return tensor
    return dict(zip(inputs, tensors, strict=True)) if isinstance(inputs, dict) else tuple(tensors)


def count(inputs: Inputs) -> int:
    """Return the number of examples."""
    return len(tensors_of(inputs)[0])


def moved(inputs: Inputs, device: torch.device | str) -> Inputs:
    """Return inputs on ``device``."""
    return mapped(inputs, lambda part: part.to(device))


def channels_last(inputs: Inputs) -> Inputs:
    """Return inputs with images, floats of four axes (B, C, H, W), laid out with their channels last in memory.

    A convolution computes in the memory format of its input, and is faster so.
    """
    return mapped(inputs, lambda part: part.contiguous(memory_format=torch.channels_last) if _is_image(part) else part)


def axes_in_order(inputs: Inputs) -> Inputs:
    """Return inputs laid out in memory in the order of their axes.

    Also grey images that were permuted: of one channel torch calls any strides contiguous, and convolutions go by them.
    """
    return mapped(inputs, _in_order)


def _in_order(part: Tensor) -> Tensor:
    contiguous = part.contiguous()
    if _is_image(part) and contiguous.stride(1) != part.shape[2] * part.shape[3]:
        return contiguous.flatten().view(part.shape)
    return contiguous


def _is_image(part: Tensor) -> bool:
    return part.dim() == 4 and part.is_floating_point()


def rows(inputs: Inputs, which: slice | Tensor) -> Inputs:
    """Return the rows of the examples in ``which``."""
    return mapped(inputs, lambda part: part[which])


def repeated(inputs: Inputs, times: int) -> Inputs:
    """Return the examples repeated ``times`` times, copied."""
    return mapped(inputs, lambda part: part.repeat(times, *[1] * (part.dim() - 1)))


def expanded(example: Inputs, size: int) -> Inputs:
    """Return a batch of ``size`` times the one ``example``, without a copy."""
    return mapped(example, lambda part: part.expand(size, *part.shape[1:]))


def pieces(inputs: Inputs, size: int) -> list[Inputs]:
    """Split inputs into consecutive parts of at most ``size`` examples."""
    if isinstance(inputs, Tensor):
        return list(torch.split(inputs, size))
    split = (torch.split(part, size) for part in tensors_of(inputs))
    return [like(inputs, piece) for piece in zip(*split, strict=True)]


def joined(several: Sequence[Inputs]) -> Inputs:
    """Concatenate the examples of several inputs."""
    first = several[0]
    columns = zip(*map(tensors_of, several), strict=True)
    return like(first, [torch.cat(column) for column in columns])


def described(inputs: Inputs, say: Callable[[Tensor], str]) -> str:
    """Return a text with ``say`` applied to each tensor, and with the tensors' names where they have some."""
    if isinstance(inputs, Tensor):
        return say(inputs)
    if isinstance(inputs, dict):
        return f"{{{', '.join(f'{name}: {say(part)}' for name, part in inputs.items())}}}"
    return f"({', '.join(map(say, inputs))})"


def with_numbers(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs with ``change`` applied to floating-point tensors; integers, and masks among several tensors, stay.

    Integers are counts or names, such as tokens.
    """

    def changed(part: Tensor) -> Tensor:
        kept = not part.is_floating_point() or (not isinstance(inputs, Tensor) and is_mask(part))
        return part if kept else change(part)

    return mapped(inputs, changed)


def is_mask(part: Tensor) -> bool:
    """Return whether a tensor holds zeros and ones alone, so that other values could make a network fail."""
    return bool(((part == 0) | (part == 1)).all())


def _if_tensors(inputs: Inputs, parts: Sequence[object]) -> Inputs | None:
    """Return ``inputs``, made of ``parts``, if all of these are tensors with a batch axis; else None."""
    tensors = tensors_of(inputs)
    fit = bool(tensors) and len(tensors) == len(parts) and all(isinstance(one, Tensor) and one.dim() for one in tensors)
    return inputs if fit else None
