"""The layers of a model and the names of their tensors, for methods that treat layers differently.

Layers come in the order of the forward pass; in the residual blocks of built-in backbones the shortcut comes last.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, moved
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import NORMS
from fedml_dapper.models.running import undisturbed
from fedml_dapper.pruning.tracing.linear_maps import linear_maps


@dataclass(frozen=True)
class Layer:
    """A layer: its name in the model (``model.get_submodule(name)``), and its state-dict entries, buffers included."""

    name: str
    tensors: tuple[str, ...]


def module_order(model: nn.Module) -> Sequence[str]:
    """Names of all modules, in the order in which a forward pass reaches them where that is known."""
    return model.module_order if isinstance(model, Backbone) else [name for name, _ in model.named_modules()]


def modules_of(model: nn.Module) -> list[Layer]:
    """Modules that have tensors of their own; convolutions, linear layers and BatchNorms each for itself."""
    owned: dict[str, list[str]] = {}
    for tensor in model.state_dict():
        owned.setdefault(_owner(tensor), []).append(tensor)
    order = module_order(model)
    position = {name: place for place, name in enumerate(order)}
    names = sorted(owned, key=lambda name: position.get(name, len(order)))  # a shared layer has a name in the order
    return [Layer(name, tuple(owned[name])) for name in names]


def layers_of(model: nn.Module) -> list[Layer]:
    """Convolutions, linear layers and all else that has a matrix, such as recurrent layers, attention and embeddings;
    each with the BatchNorm (and whatever else has tensors) that follows it."""
    layers: list[Layer] = []
    for module in modules_of(model):
        if not layers or _begins_layer(model.get_submodule(module.name)):
            layers.append(module)
        else:
            layers[-1] = Layer(layers[-1].name, layers[-1].tensors + module.tensors)
    return layers


def linear_layers(model: nn.Module, example: Inputs) -> frozenset[str]:
    """Names of the linear layers: torch's, and those of users' classes that do the same."""
    torchs = {name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    with undisturbed(example):
        return frozenset(torchs | linear_maps(model).keys())


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
    """Norms, of one of the types ``norms``, that take the output of a layer (:func:`layers_of`), by its name.

    They are found in a forward pass of ``example``.
    """
    probe = copy.deepcopy(model).eval()
    made: list[tuple[Tensor, str]] = []
    pairs: dict[str, str] = {}

    def note_output(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _layer, _inputs, output: made.append((output, name))

    def note_input(norm: str) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
        def hook(_norm: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            pairs.update({name: norm for output, name in made if any(output is x for x in (*inputs, *named.values()))})

        return hook

    for name, layer in probe.named_modules():
        if _begins_layer(layer):
            layer.register_forward_hook(note_output(name))
        elif isinstance(layer, norms):
            layer.register_forward_pre_hook(note_input(name), with_kwargs=True)
    with undisturbed(example):
        probe(moved(example, next(model.parameters()).device))
    return pairs


def called_layers(model: Backbone, example: Inputs) -> frozenset[str]:
    """Names of the modules that a forward pass of ``example`` calls.

    Of others only the weights are used, as torch's attention does with those of ``out_proj``.
    """
    return frozenset(calls_of_layers(model, example))


def calls_of_layers(model: Backbone, example: Inputs) -> Mapping[str, int]:
    """How often a forward pass of ``example`` calls each module, by name; without those that it does not call."""
    probe = copy.deepcopy(model).eval()
    calls = Counter[str]()

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.update([name])

    for name, layer in probe.named_modules():
        layer.register_forward_pre_hook(note(name))
    with undisturbed(example):
        probe(moved(example, next(model.parameters()).device))
    return calls


def _begins_layer(module: nn.Module) -> bool:
    """Whether a module is a layer rather than something that follows one."""
    if isinstance(module, nn.Linear | _ConvNd):
        return True
    own = () if isinstance(module, NORMS) else module.parameters(recurse=False)
    return any(sum(size > 1 for size in tensor.shape) > 1 for tensor in own)


def _owner(tensor: str) -> str:
    """The module that a state-dict entry belongs to; torch's parametrizations keep what they compute a weight from in
    modules of their own."""
    layer, is_parametrized, _ = tensor.partition(".parametrizations.")
    return layer if is_parametrized else tensor.rpartition(".")[0]
