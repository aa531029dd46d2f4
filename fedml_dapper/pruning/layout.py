"""Which channels of a network may go together, found once per architecture with torch-pruning's dependency graph.

The graph is traced on the dense model and boiled down to plain data: groups of channels, and for every tensor the axes
along which a group cuts it. Everything else in this room (plans, slim models, recovery, footprints) reads only that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch_pruning
from torch import Tensor, nn

from fedml_dapper.config import Uplink
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import Backbone
from fedml_dapper.profiling import part

Scope = Literal["internal", "grouped", "official_mask"]
Widths = Mapping[str, int]
"""Group name -> number of channels kept; groups that are not named keep all of theirs."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that can only be removed together, named after the first layer that produces them."""

    name: str
    channels: int
    producers: tuple[str, ...]
    """Weights whose filters (rows) produce the channels; several where outputs are added together."""


@dataclass(frozen=True)
class Axis:
    """One prunable axis of a tensor: ``repeat`` consecutive entries belong to one channel of ``group``."""

    dim: int
    group: str
    repeat: int = 1


@dataclass(frozen=True)
class TensorSpec:
    """A state-dict entry of the dense model, and how it may be cut."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    macs_per_element: int
    """Multiply-accumulates per entry and image: output positions for conv and linear weights, 2 x positions for
    BatchNorm weights, 0 for the rest."""
    axes: tuple[Axis, ...] = ()

    def shape_at(self, widths: Widths) -> tuple[int, ...]:
        """The shape left when every group keeps its width."""
        shape = list(self.shape)
        for axis in self.axes:
            if axis.group in widths:
                shape[axis.dim] = widths[axis.group] * axis.repeat
        return tuple(shape)


@dataclass(frozen=True)
class ChannelLayout:
    """The prunable groups of an architecture under one scope, and all its tensors."""

    groups: Mapping[str, ChannelGroup]
    tensors: Mapping[str, TensorSpec]
    uplink: Uplink = "fp32"
    """In what the tensors travel to the server."""

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters, i.e. of all tensors but the buffers."""
        return [name for name, spec in self.tensors.items() if spec.trainable]


@part("pruning")
def trace_layout(model: Backbone, example: Tensor | int, scope: Scope | None) -> ChannelLayout:
    """Trace ``model`` on ``example``, a batch of one input (a number: the side of an image), and keep the groups that
    ``scope`` allows.

    ``internal``: groups with one producer that do not reach the predictor; in a residual network these
    are the channels inside each block, so z and every residual stream keep their width. ``grouped``: every group, the
    residual streams too. ``official_mask`` and None: none, since nothing is removed. The predictor's outputs and the
    input image are never prunable. Raises :class:`ConfigError` for layers whose channels cannot be followed.
    """
    probe = copy.deepcopy(model).eval()  # tracing runs the network and may change its mode and statistics
    groups, axes = _allowed_groups(probe, example, scope)
    macs = _macs_per_element(probe, example)
    trainable = {name for name, _ in model.named_parameters()}
    tensors = {
        name: TensorSpec(
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            trainable=name in trainable,
            macs_per_element=macs.get(name, 0),
            axes=tuple(sorted(axes.get(name, []), key=lambda axis: axis.dim)),
        )
        for name, tensor in model.state_dict().items()
    }
    return ChannelLayout(groups, tensors)


def _allowed_groups(
    model: Backbone, example: Tensor | int, scope: Scope | None
) -> tuple[dict[str, ChannelGroup], dict[str, list[Axis]]]:
    groups: dict[str, ChannelGroup] = {}
    axes: dict[str, list[Axis]] = {}
    if scope is None or scope == "official_mask":
        return groups, axes
    names = {module: name for name, module in model.named_modules()}
    order = {name: position for position, name in enumerate(names.values())}
    images = _on_device(model, example)
    graph = torch_pruning.DependencyGraph().build_dependency(model, images, verbose=False)  # it warns of every scalar
    for traced in graph.get_all_groups(ignored_layers=[model.predictor], root_module_types=[nn.Conv2d, nn.Linear]):
        members = [
            _Member.of(item, names[item.dep.target.module]) for item in traced if item.dep.target.module in names
        ]
        producers = sorted((m.module for m in members if m.produces), key=order.__getitem__)
        reaches_predictor = any(m.layer is model.predictor for m in members)
        if scope == "internal" and (len(producers) > 1 or reaches_predictor):
            continue
        group = ChannelGroup(producers[0], members[0].size, tuple(f"{module}.weight" for module in producers))
        groups[group.name] = group
        for member in members:
            for tensor, dim in member.cut_tensors():
                axes.setdefault(tensor, []).append(Axis(dim, group.name, member.size // group.channels))
    return dict(sorted(groups.items(), key=lambda item: order[item[0]])), axes


@dataclass(frozen=True)
class _Member:
    module: str
    layer: nn.Module
    consumes: bool
    size: int

    @classmethod
    def of(cls, item: torch_pruning.pruner.function.GroupItem, module: str) -> _Member:
        layer = item.dep.target.module
        if not isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d | nn.BatchNorm1d):
            raise ConfigError(f"cannot prune through layer `{module}` ({type(layer).__name__}); use another backbone")
        consumes = "in_channels" in item.dep.handler.__name__
        return cls(module, layer, consumes, len(item.idxs))

    @property
    def produces(self) -> bool:
        return not self.consumes and isinstance(self.layer, nn.Conv2d | nn.Linear)

    def cut_tensors(self) -> list[tuple[str, int]]:
        if self.consumes:
            return [(f"{self.module}.weight", 1)]
        per_channel = [name for name, tensor in self.layer.state_dict().items() if tensor.dim() > 0]
        return [(f"{self.module}.{name}", 0) for name in per_channel]


def _macs_per_element(model: Backbone, example: Tensor | int) -> dict[str, int]:
    positions: dict[str, int] = {}
    hooks = []
    for name, layer in model.named_modules():
        factor = 2 if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d) else 1
        if factor == 2 or isinstance(layer, nn.Conv2d | nn.Linear):

            def note(
                _layer: nn.Module, _inputs: object, output: Tensor, key: str = f"{name}.weight", factor: int = factor
            ) -> None:
                positions[key] = factor * output[0, 0].numel()

            hooks.append(layer.register_forward_hook(note))
    with torch.no_grad():
        model(_on_device(model, example))
    for hook in hooks:
        hook.remove()
    return positions


def _on_device(model: Backbone, example: Tensor | int) -> Tensor:
    return (torch.zeros(1, 3, example, example) if isinstance(example, int) else example).to(
        next(model.parameters()).device
    )
