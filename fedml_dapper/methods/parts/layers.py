"""The layers of a model and the names of their tensors, for methods that treat layers differently.

Layers come in the order in which a model registers them, which for every backbone here is that of its forward pass;
within a residual block the shortcut comes last.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from fedml_dapper.models import Backbone


@dataclass(frozen=True)
class Layer:
    """A layer's name in the model (``model.get_submodule(name)``), and its state-dict entries, buffers included."""

    name: str
    tensors: tuple[str, ...]


def modules_of(model: nn.Module) -> list[Layer]:
    """Every module that has tensors of its own; convolutions, linear layers and BatchNorms each for itself."""
    owned: dict[str, list[str]] = {}
    for tensor in model.state_dict():
        owned.setdefault(tensor.rpartition(".")[0], []).append(tensor)
    return [Layer(name, tuple(tensors)) for name, tensors in owned.items()]


def layers_of(model: nn.Module) -> list[Layer]:
    """Convolutions and linear layers, each with the BatchNorm (and whatever else has tensors) that follows it."""
    layers: list[Layer] = []
    for module in modules_of(model):
        if not layers or isinstance(model.get_submodule(module.name), nn.Conv2d | nn.Linear):
            layers.append(module)
        else:
            layers[-1] = Layer(layers[-1].name, layers[-1].tensors + module.tensors)
    return layers


def tensors_of(model: nn.Module, *kinds: type[nn.Module]) -> frozenset[str]:
    """State-dict entries of the modules of these types."""
    modules = (module for module in modules_of(model) if isinstance(model.get_submodule(module.name), kinds))
    return frozenset(tensor for module in modules for tensor in module.tensors)


def head_of(model: Backbone) -> frozenset[str]:
    """State-dict entries of the head, the last linear layer; all others are the body."""
    return frozenset(f"predictor.{name}" for name in model.predictor.state_dict())


def train_only(model: nn.Module, names: Collection[str]) -> None:
    """Of all parameters only those named get gradients; without one, SGD neither moves nor decays a parameter."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
