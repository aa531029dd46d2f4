"""Layers split into a large extractor that clients share and a small corrector of their own (FDSE)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.parts.layers import calls_of_layers, module_order, modules_of, normalised_layers
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.models.skipping import SkippingConv

Activation = Literal["none", "relu", "leaky"]
_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.01),
}
_CONVOLUTIONS: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS: dict[int, type[BatchNorm]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
"""Torch's layers by the number of axes that they go over."""


class DecomposedLayer(nn.Module):
    """A layer split in two, in place of a convolution or linear layer of T outputs and the BatchNorm behind it.

    The feature extractor (DFE) gives T' = ceil(T / G) core channels. From each of them, normalised by ``bn_dse``, the
    skew eraser (DSE), a depthwise convolution, makes G - 1 more; without ``shortcut`` it makes all G. Its filters are
    3x3 (of series 3, of volumes 3x3x3; behind a linear layer 1x1, a scale). Core channels stand first, then those made
    of the first of them, and so on; what goes beyond T is cut off. A bias per channel and ``bn_dfe`` follow.
    """

    consensus: ClassVar = ("dfe.weight", "dfe.bias", "bias", "bn_dfe.weight", "bn_dfe.bias")
    """Names of entries by role (see :class:`Roles`), below the layer's name."""
    similarity: ClassVar = ("bn_dse.weight", "bn_dse.bias", "dse.weight")
    statistics: ClassVar = ("bn_dfe.running_mean", "bn_dfe.running_var", "bn_dfe.num_batches_tracked")
    local: ClassVar = ("bn_dse.running_mean", "bn_dse.running_var", "bn_dse.num_batches_tracked")

    def __init__(
        self, layer: _ConvNd | nn.Linear, norm: BatchNorm, expansion: int,
        activation: Activation, shortcut: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        outputs = layer.weight.shape[0]
        core = -(-outputs // expansion)
        self.dfe, kernel_size = _narrowed(layer, core)
        self.bn_dse = _core_norm(norm, layer)(core, eps=norm.eps, momentum=norm.momentum)
        self.activation = _ACTIVATIONS[activation]()
        made = core * (expansion - 1 if shortcut else expansion)
        conv = nn.Conv2d if isinstance(layer, nn.Linear) else _CONVOLUTIONS[len(layer.kernel_size)]
        self.dse = conv(core, made, kernel_size, padding=kernel_size // 2, groups=core, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.bn_dfe = norm
        self._shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        core = self.bn_dse(self.dfe(x))
        varied = self.activation(core)
        images = varied if varied.dim() > 2 else varied[:, :, None, None]
        made = self.dse(images).reshape(core.shape[0], -1, *core.shape[2:])
        features = torch.cat([core, made], dim=1) if self._shortcut else made
        features = features[:, : len(self.bias)]
        normalised: Tensor = self.bn_dfe(features + self.bias.view(-1, *[1] * (features.dim() - 2)))
        return normalised


def decompose(
    backbone: Backbone, example: Inputs, expansion: int = 2, activation: Activation = "none", shortcut: bool = True
) -> Backbone:
    """A copy in which every layer that a BatchNorm follows is decomposed; a linear head on top stays as it is.

    New weights are drawn by torch's default rules, on the device of the old ones. Raises :class:`ConfigError` where
    there is nothing to decompose.
    """
    decomposed = copy.deepcopy(backbone)
    calls = calls_of_layers(decomposed, example)
    pairs = {
        layer: norm
        for layer, norm in normalised_layers(decomposed, example, BatchNorm).items()
        if _can_be_split(decomposed.get_submodule(layer), decomposed.get_submodule(norm))
        and calls[layer] == calls[norm] == 1  # of several calls, each would have statistics of its own
    }
    if not pairs:
        raise ConfigError(
            "model_args.model: fdse decomposes layers (linear, or convolutions without groups) that a BatchNorm with"
            " statistics follows, and the network has none; set model_args.norm to batch where it is ours, or choose"
            " another network or another dapper_args.method"
        )
    for layer_name, norm_name in pairs.items():
        layer = decomposed.get_submodule(layer_name)
        norm = decomposed.get_submodule(norm_name)
        assert isinstance(layer, _ConvNd | nn.Linear)
        assert isinstance(norm, BatchNorm)
        new = DecomposedLayer(layer, norm, expansion, activation, shortcut)
        decomposed.set_submodule(layer_name, new.to(layer.weight.device))
        decomposed.set_submodule(norm_name, nn.Identity())
    return decomposed


def decomposed_layers(model: nn.Module) -> dict[str, DecomposedLayer]:
    """Decomposed layers by name, in the order in which a forward pass reaches them."""
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, DecomposedLayer)}
    return {name: found[name] for name in module_order(model) if name in found}


def undecomposed_layers(model: Backbone, example: Inputs) -> list[str]:
    """Layers of a decomposed network that were left whole although a BatchNorm follows them."""
    inside = tuple(f"{name}." for name in decomposed_layers(model))
    return [layer for layer in normalised_layers(model, example, BatchNorm) if not layer.startswith(inside)]


@dataclass(frozen=True)
class Roles:
    """State-dict entries of a decomposed network by what the server does with them; each has exactly one role."""

    consensus: tuple[tuple[str, ...], ...]
    """Shared parameters, in groups that move in one direction: a decomposed layer's, or those of any other module."""
    similarity: tuple[tuple[str, ...], ...]
    """Each client's own parameters, in groups that are mixed by one similarity: a layer's."""
    statistics: tuple[str, ...]
    """Shared buffers, averaged plainly."""
    local: frozenset[str]
    """Buffers that never leave their client."""


def roles_of(model: Backbone, granularity: Literal["block", "per_tensor"] = "block") -> Roles:
    """Roles of the tensors in ``model``; with ``per_tensor`` every parameter is a group of its own."""
    layers = decomposed_layers(model)

    def entries(names: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [tuple(f"{layer}.{name}" for name in names) for layer in layers]

    consensus = entries(DecomposedLayer.consensus)
    similarity = entries(DecomposedLayer.similarity)
    statistics = [name for group in entries(DecomposedLayer.statistics) for name in group]
    local = frozenset(name for group in entries(DecomposedLayer.local) for name in group)
    trainable = {name for name, _ in model.named_parameters()}
    known = {name for group in (*consensus, *similarity, statistics) for name in group} | local
    for module in modules_of(model):
        others = [name for name in module.tensors if name not in known]
        statistics += [name for name in others if name not in trainable]
        if parameters := tuple(name for name in others if name in trainable):
            consensus.append(parameters)
    if granularity == "per_tensor":
        consensus = _singly(consensus)
        similarity = _singly(similarity)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return Roles(_without(frozen, consensus), _without(frozen, similarity), tuple(statistics), local)


def _can_be_split(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether each output of the layer comes from all inputs, and the norm has gains, biases and running statistics of
    these outputs, each of which has its role."""
    if not isinstance(norm, BatchNorm) or not norm.affine or not norm.track_running_stats:
        return False
    if isinstance(layer, _ConvNd):
        is_whole = layer.groups == 1 and not isinstance(layer, _ConvTransposeNd)
    else:
        is_whole = isinstance(layer, nn.Linear)
    return is_whole and norm.num_features == len(layer.get_parameter("weight"))


def _core_norm(norm: BatchNorm, layer: _ConvNd | nn.Linear) -> type[BatchNorm]:
    """Class of ``norm`` where it is torch's own; else, as it may be made otherwise, the plain one for ``layer``."""
    if type(norm) in (*_NORMS.values(), nn.SyncBatchNorm):
        return type(norm)
    return nn.BatchNorm1d if isinstance(layer, nn.Linear) else _NORMS[len(layer.kernel_size)]


def _without(names: Collection[str], groups: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The ``groups`` without these names; those that hold no other are left out."""
    others = (tuple(name for name in group if name not in names) for group in groups)
    return tuple(filter(None, others))


def _singly(groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(name,) for group in groups for name in group]


def _narrowed(layer: _ConvNd | nn.Linear, outputs: int) -> tuple[_ConvNd | nn.Linear, int]:
    """A new layer like ``layer`` of ``outputs`` outputs, with bias; and the kernel size of the eraser behind it."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, outputs), 1
    size = layer.kernel_size
    stride = layer.stride
    padding = layer.padding
    kind = SkippingConv if isinstance(layer, SkippingConv) else _CONVOLUTIONS[len(size)]
    return kind(layer.in_channels, outputs, size, stride, padding, layer.dilation), 3  # type: ignore[arg-type]  # int or pair
