"""Running a network without side effects, and finding out which of its layers runs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from fedml_dapper.inputs import Inputs, tensors_of

_SEED = 17
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


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
def running(model: nn.Module, stack: list[str]) -> Iterator[set[str]]:
    """Keep the names of the running layers on ``stack``, the innermost last; if one fails, its name stays there.

    The block is given the names of all layers that have run.
    """
    ran = set[str]()

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            stack.append(name)
            ran.add(name)

        return hook

    def leave(*_: object) -> None:
        stack.pop()

    hooks = []
    for name, layer in model.named_modules():
        hooks += [layer.register_forward_pre_hook(enter(name)), layer.register_forward_hook(leave)]
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()


def in_mode(module: nn.Module, training: bool) -> nn.Module:
    """Set the mode of ``module`` and return it; overrides of ``train`` often return nothing."""
    module.train(training)
    return module


def first_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of its text, without a terminal's colours."""
    lines = _COLOURS.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}{nested_tensor_hint(lines[0])}" if lines else type(error).__name__


def nested_tensor_hint(words: str) -> str:
    """Return how to avoid nested tensors, which few operations know, if ``words`` are about them; otherwise nothing."""
    return " (make nn.TransformerEncoder with enable_nested_tensor=False)" if "nested" in words.lower() else ""
