"""Runs a network without a trace, and knows which of its layers runs."""

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
    """Without gradients, from the same random numbers every time; the global generators of torch, numpy and Python are
    left as they were."""
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
    """Keep the names of the layers that run on ``stack``, the innermost last; where one fails, it stays there. The
    block is given the names of all that have run."""
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


def first_line(error: BaseException) -> str:
    """What an exception is and says, in one line, without a terminal's colours."""
    lines = _COLOURS.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}{nesting(lines[0])}" if lines else type(error).__name__


def nesting(words: str) -> str:
    """Where ``words`` are of nested tensors, of which hardly any operation knows, how there come to be none."""
    return " (make nn.TransformerEncoder with enable_nested_tensor=False)" if "nested" in words.lower() else ""
