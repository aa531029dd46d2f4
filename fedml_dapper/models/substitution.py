"""Running a network with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def run_with(
    model: nn.Module, tensors: Mapping[str, Tensor], inputs: tuple[Any, ...], named: Mapping[str, Any] | None = None
) -> Any:
    """Return the output of ``model`` for these inputs, with ``tensors``, by any of their names, in place of its own.

    A tensor under several names is replaced under all of them. Deviation from :func:`torch.func.functional_call`, which
    does so too: that fills a layer that is in the network several times once per name, and at the end restores what it
    had filled in itself; here each layer is filled once.
    """
    everything = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    substitutes = {id(own): tensors[name] for name, own in everything if name in tensors}
    places = {
        f"{layer_name}.{name}" if layer_name else name: substitutes[id(own)]
        for layer_name, layer in model.named_modules()
        for of_layer in (layer.named_parameters, layer.named_buffers)
        for name, own in of_layer(recurse=False, remove_duplicate=False)
        if id(own) in substitutes
    }
    return functional_call(model, places, inputs, dict(named or {}), tie_weights=False)
