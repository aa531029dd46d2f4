"""Check whether a forked process can draw clients' batches as this process would.

Forking copies memory, and shares open files. So two processes that read from one open file move each other's position
in it, and both get wrong samples without noticing. And a random generator that goes on from one sample to the next
gives other numbers in each process.
"""

from __future__ import annotations

import io
import pickle
import random
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.datasets.batches import ClientSamples, TestSamples
from fedml_dapper.datasets.division import Division
from fedml_dapper.datasets.items import Items
from fedml_dapper.datasets.loaded import LoadedClient

_HARMLESS = (Tensor, np.ndarray, type, BuiltinFunctionType, ModuleType)
"""Kinds of values that can be forked: they lie in memory, however large, or are code. Tensors and arrays are not worth
a copy, and not all code can be pickled."""
_GO_ON = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def tied_to_this_process(division: Division) -> str | None:
    """Return why only this process can draw the batches of ``division``; None where any fork of it can."""
    if any(isinstance(client, LoadedClient) for client in division.clients):
        return "a program's loaders may go on from one epoch to the next"
    tests = (test for own in division.client_tests for test in (own.test, own.validation))
    holders = (each for each in (*division.clients, *tests) if isinstance(each, ClientSamples | TestSamples))
    items = (each.samples for each in holders if isinstance(each.samples, Items))
    held = {id(source.dataset): source.dataset for one in items for source in one.sources}
    return next(filter(None, map(_what_ties, held.values())), None)


def _what_ties(source: object) -> str | None:
    """Return what in a data set cannot be forked: a generator, or something that cannot be pickled, such as a file."""
    try:
        _Probe().dump(source)
    except Exception as error:  # noqa: BLE001  # the user's objects raise what they like, all of it means no
        return f"{type(source).__name__} holds something that only one process can use: {' '.join(str(error).split())}"
    return None


class _Probe(pickle.Pickler):
    """A pickler that looks through all that an object holds, and writes nothing of what is harmless.

    Of a function it looks through what it keeps from where it was made, of a method through its object.
    """

    def __init__(self, seen: set[int] | None = None) -> None:
        super().__init__(io.BytesIO(), protocol=5)
        self._seen = set[int]() if seen is None else seen
        """Functions and objects of methods that are looked through already, which may hold themselves."""

    def persistent_id(self, found: Any) -> str | None:
        if isinstance(found, _GO_ON):
            raise TypeError(f"a {type(found).__name__} of its own")
        if isinstance(found, FunctionType | MethodType):
            self._look_through(found)
            return "looked through"
        if isinstance(found, _HARMLESS):
            return "harmless"
        kept = getattr(found, "__dict__", None)
        if isinstance(kept, dict) and any(isinstance(value, io.IOBase) for value in kept.values()):
            raise TypeError("an open file")  # which the object's own pickling may leave out
        return None

    def _look_through(self, code: FunctionType | MethodType) -> None:
        whole = code.__self__ if isinstance(code, MethodType) else code
        if id(whole) in self._seen:
            return
        self._seen.add(id(whole))
        if isinstance(whole, FunctionType):
            cells = [cell.cell_contents for cell in whole.__closure__ or () if cell != CellType()]
            _Probe(self._seen).dump([cells, whole.__defaults__, whole.__kwdefaults__])
        else:
            _Probe(self._seen).dump(whole)
