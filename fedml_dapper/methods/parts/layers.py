"""The layers of a model and the names of their tensors, for methods that treat layers differently.

Layers come in the order of the forward pass; in the residual blocks of built-in backbones the shortcut comes last.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, moved
from fedml_dapper.models import Backbone


@dataclass(frozen=True)
class Layer:
    """A layer: its name in the model (``model.get_submodule(name)``), and its state-dict entries, buffers included."""

    name: str
    tensors: tuple[str, ...]


def modules_of(model: nn.Module) -> list[Layer]:
    """Modules that have tensors of their own; convolutions, linear layers and BatchNorms each for itself."""
    owned: dict[str, list[str]] = {}
    for tensor in model.state_dict():
        owned.setdefault(tensor.rpartition(".")[0], []).append(tensor)
    order = model.module_order if isinstance(model, Backbone) else [name for name, _ in model.named_modules()]
    position = {name: place for place, name in enumerate(order)}
    names = sorted(owned, key=lambda name: position.get(name, len(order)))  # a shared layer has a name in the order
    return [Layer(name, tuple(owned[name])) for name in names]


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
    """State-dict entries of the head, the last linear layer; all others are the body.

    Raises :class:`ConfigError` where the model has no such layer.
    """
    if not model.head_tensors:
        raise ConfigError(
            "dapper_args.method: the method treats the last linear layer apart, and in front of the network's output"
            " there is none; choose another method, or name the layer in model_args.predictor"
        )
    return model.head_tensors


def train_only(model: nn.Module, names: Collection[str]) -> None:
    """Give gradients to the parameters named, and to no others; without one, SGD neither moves nor decays them."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)


@torch.no_grad()
def normalised_layers(model: Backbone, example: Inputs, *norms: type[nn.Module]) -> dict[str, str]:
    """Norms, of one of the types ``norms``, that take the output of a convolution or linear layer, by that layer's
    name.

    They are found in a forward pass of ``example``.
    """
    probe = copy.deepcopy(model).eval()
    made: list[tuple[Tensor, str]] = []
    pairs: dict[str, str] = {}

    def note_output(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _layer, _inputs, output: made.append((output, name))

    def note_input(norm: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _norm, inputs: pairs.update({name: norm for output, name in made if output is inputs[0]})

    for name, layer in probe.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(note_output(name))
        elif isinstance(layer, norms):
            layer.register_forward_pre_hook(note_input(name))
    probe(moved(example, next(model.parameters()).device))
    return pairs
