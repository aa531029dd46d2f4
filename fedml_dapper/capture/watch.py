"""Watch over what was read of a value: whether it is still as it was, without reading it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import is_
from types import CellType, FunctionType
from typing import Any

from torch import Tensor


class Watch:
    """Watch over containers, functions and tensors.

    What is in a container counts by its identity, so that a part which can change has to be watched itself.
    """

    def __init__(self) -> None:
        self._mappings: list[tuple[Mapping[Any, Any], list[Any], list[Any]]] = []
        self._collections: list[tuple[Collection[Any], list[Any]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._tensors: list[tuple[Tensor, tuple[Any, ...]]] = []
        self._is_blind = False

    def over(self, mapping: Mapping[Any, Any]) -> None:
        """Watch which keys and values ``mapping`` has, and in which order."""
        self._mappings.append((mapping, list(mapping), list(mapping.values())))

    def over_parts(self, parts: Collection[Any]) -> None:
        """Watch which parts there are; a tuple's do not change."""
        if not isinstance(parts, tuple | frozenset):
            self._collections.append((parts, list(parts)))

    def over_function(self, function: FunctionType) -> None:
        """Watch the defaults of ``function``, and which objects it closes over."""
        self._functions.append((function, _parts_of(function)))
        self._cells += [(cell, cell.cell_contents) for cell in function.__closure__ or ()]

    def over_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Watch where ``tensors`` lie in memory, and how; their values do not count."""
        self._tensors += [(tensor, _place_of(tensor)) for tensor in tensors]

    def is_blind(self) -> None:
        """Note that something was read which cannot be watched."""
        self._is_blind = True

    def sees_no_change(self) -> bool:
        """Return whether everything is as it was; False where something cannot be watched."""
        return not self._is_blind and (
            all(
                _are_same(mapping.values(), parts) and _are_same(mapping, keys)
                for mapping, keys, parts in self._mappings
            )
            and all(_are_same(collection, parts) for collection, parts in self._collections)
            and all(cell.cell_contents is held for cell, held in self._cells)
            and all(_are_same(_parts_of(function), parts) for function, parts in self._functions)
            and all(_place_of(tensor) == place for tensor, place in self._tensors)
        )


def _are_same(now: Collection[Any], before: Collection[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _parts_of(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.requires_grad
