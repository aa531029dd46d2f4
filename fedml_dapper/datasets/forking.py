"""Can a fork of this process draw clients' batches as this process would?

Memory is copied when a process is forked, and what is open is shared. So two processes that read from one open file
move each other's place in it, and both get wrong samples without noticing. And a random generator that goes on from one
sample to the next gives others in each process.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.datasets.batches import ClientSamples, TestSamples
from fedml_dapper.datasets.division import Division
from fedml_dapper.datasets.items import Items
from fedml_dapper.datasets.loaded import LoadedClient

_HARMLESS = (Tensor, np.ndarray, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
"""In memory, however large, or code; the first two are not worth a copy, and not all code can be pickled."""
_GO_ON = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def tied_to_this_process(division: Division) -> str | None:
    """Why only this process can draw the batches of ``division``; None where any fork of it will do as well."""
    if any(isinstance(client, LoadedClient) for client in division.clients):
        return "a program's loaders may go on from one epoch to the next"
    tests = (test for own in division.client_tests for test in (own.test, own.validation))
    holders = (each for each in (*division.clients, *tests) if isinstance(each, ClientSamples | TestSamples))
    items = (each.samples for each in holders if isinstance(each.samples, Items))
    return next(filter(None, map(_what_ties, _distinct(source.held for one in items for source in one.sources))), None)


def _distinct(sources: Iterable[object]) -> Iterable[object]:
    return {id(source): source for source in sources}.values()


def _what_ties(source: object) -> str | None:
    """What in a data set goes on, or may be a file or a connection, as such things refuse to be pickled."""
    try:
        _Probe(io.BytesIO(), protocol=5).dump(source)
    except Exception as error:  # noqa: BLE001  # the user's objects raise what they like, all of it means no
        return f"{type(source).__name__} holds something that only one process can use: {' '.join(str(error).split())}"
    return None


class _Probe(pickle.Pickler):
    """Looks through all that an object holds, and writes nothing down of what is harmless."""

    def persistent_id(self, found: Any) -> str | None:
        if isinstance(found, _GO_ON):
            raise TypeError(f"a {type(found).__name__} of its own")
        return "harmless" if isinstance(found, _HARMLESS) else None
