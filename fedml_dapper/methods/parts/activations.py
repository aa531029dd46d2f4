"""Inputs and outputs of a model's layers while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn


class Activation(NamedTuple):
    """A layer's input and output in one forward pass, batch first."""

    input: Tensor
    output: Tensor


def _copy(tensor: Tensor) -> Tensor:
    """The values as they are now: a layer that works in place, such as ``ReLU(inplace=True)``, may follow."""
    return tensor.detach().clone()


@contextmanager
def observed(model: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Activation]]:
    """Dictionary with the latest forward pass's :class:`Activation` of each of ``layers``, by name, filled inside."""
    latest: dict[str, Activation] = {}
    hooks = []
    for name in layers:

        def note(
            _layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor, name: str = name
        ) -> None:
            [given, *_] = (*inputs, *named.values())
            latest[name] = Activation(_copy(given), _copy(output))

        hooks.append(model.get_submodule(name).register_forward_hook(note, with_kwargs=True))
    try:
        yield latest
    finally:
        for hook in hooks:
            hook.remove()
