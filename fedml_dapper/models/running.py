"""Running a network without side effects, and finding out which of its layers runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from fedml_dapper.inputs import Inputs, tensors_of

_SEED = 17


@contextmanager
def undisturbed(example: Inputs) -> Iterator[None]:
    """Run without gradients, from the same random numbers every time, and restore all global generators afterwards.

    These are the generators of torch, numpy and Python.
    """
    device = tensors_of(example)[0].device
    numpys = np.random.get_state()
    pythons = random.getstate()
    try:
        with torch.random.fork_rng([device.index] if device.type == "cuda" else []), torch.no_grad():
            torch.manual_seed(_SEED)
            np.random.seed(_SEED)
            random.seed(_SEED)
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


@contextmanager
def running(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the running layers on ``stack``, the innermost last; if one fails, its name stays there."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    def leave(*_: object) -> None:
        stack.pop()

    hooks = []
    for name, layer in model.named_modules():
        hooks += [layer.register_forward_pre_hook(enter(name)), layer.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def first_line(error: Exception) -> str:
    """Return the kind of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
