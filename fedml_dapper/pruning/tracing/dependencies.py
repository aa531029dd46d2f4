"""Groups of plain networks, as torch-pruning's dependency graph finds them.

A plain network consists of ordinary convolutions, linear layers and BatchNorm whose channels stay in order and have
equally many consecutive entries each; all of the papers' networks are plain. In others the graph's own indices do not
say where channels go (a second copy with its sign changed, a flattening with the channels last), so they are followed
(``follower``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedml_dapper.inputs import Inputs
from fedml_dapper.pruning.layout import Axis, ChannelGroup, ChannelLayout

_PLAIN = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d)


def plain_layout(
    whole: ChannelLayout, model: nn.Module, example: Inputs, output_layers: Collection[nn.Module], internal: bool
) -> ChannelLayout | None:
    """Return ``whole`` with the groups that may be cut; None where the network is not plain.

    Args:
        whole: Layout without groups.
        model: Network to trace. It is run, and its mode and statistics may change.
        example: Input to run it on.
        output_layers: Layers that produce what the network puts out, which are never cut.
        internal: Whether to keep only groups with a single producer that no output layer reads.
    """
    if not output_layers or not _is_plain(model):
        return None
    library = _torch_pruning()  # which takes memory, so for plain networks alone
    if library is None:
        return None
    try:
        found = _found(library, whole, model, example, output_layers, internal)
    except Exception:  # noqa: BLE001  # whatever torch-pruning meets between the layers: they are followed instead
        return None
    return found if found is not None and _fits(found) else None


def _torch_pruning() -> Any:
    """Return the library; None on devices, which do without it, as their networks' channels can be followed as well."""
    try:
        import torch_pruning  # noqa: PLC0415  # slow to import, and a device does not have it
    except ImportError:
        return None
    return torch_pruning


def _found(
    library: Any,
    whole: ChannelLayout,
    model: nn.Module,
    example: Inputs,
    output_layers: Collection[nn.Module],
    internal: bool,
) -> ChannelLayout | None:
    """Return the layout that the ``library``'s dependency graph gives, or None.

    None says that a group has layers that are not plain, or that several groups lie side by side in a tensor.
    """
    names = {module: name for name, module in model.named_modules()}
    order = {name: position for position, name in enumerate(names.values())}
    unbuilt = library.DependencyGraph()
    graph = unbuilt.build_dependency(model, (example,), verbose=False)  # verbose warns of every scalar parameter
    groups: dict[str, ChannelGroup] = {}
    axes: dict[str, list[Axis]] = defaultdict(list)
    for traced in graph.get_all_groups(ignored_layers=list(output_layers), root_module_types=[nn.Conv2d, nn.Linear]):
        items = [item for item in traced if item.dep.target.module in names]
        if not all(isinstance(item.dep.target.module, _PLAIN) for item in items):
            return None
        members = [_Member.of(item, names[item.dep.target.module]) for item in items]
        producers = sorted((member.module for member in members if member.produces), key=order.__getitem__)
        read_out = any(member.layer in output_layers for member in members)
        if not producers or members[0].size == 1 or (internal and (len(producers) > 1 or read_out)):
            continue
        group = ChannelGroup(producers[0], members[0].size, tuple(f"{module}.weight" for module in producers))
        if group.name in groups or any(member.size % group.channels for member in members):
            return None
        groups[group.name] = group
        for member in members:
            for tensor, dim in member.cut_tensors():
                axes[tensor].append(Axis(dim, group.name, member.size // group.channels))
    return _with(whole, dict(sorted(groups.items(), key=lambda item: order[item[0]])), axes)


def _is_plain(model: nn.Module) -> bool:
    """Whether every tensor is the weight or bias of one plain layer alone, under one name."""
    everything = [layer for _, layer in model.named_modules(remove_duplicate=False)]
    layers = [layer for layer in everything if list(layer.parameters(recurse=False))]
    tensors = [id(tensor) for layer in layers for tensor in layer.parameters(recurse=False)]
    named = all(name in ("weight", "bias") for layer in layers for name, _ in layer.named_parameters(recurse=False))
    ungrouped = all(layer.groups == 1 for layer in layers if isinstance(layer, nn.Conv2d))
    alone = len(set(tensors)) == len(tensors)
    return named and ungrouped and alone and all(isinstance(layer, _PLAIN) for layer in layers)


def _fits(layout: ChannelLayout) -> bool:
    """Whether every group fills its axes.

    The graph assumes that most operations between layers leave channels where they are, also those that make more or
    fewer of them (PixelShuffle, grid_sample).
    """
    return all(
        layout.groups[axis.group].channels * axis.repeat == spec.shape[axis.dim]
        for spec in layout.tensors.values()
        for axis in spec.axes
    )


def _with(
    whole: ChannelLayout, groups: Mapping[str, ChannelGroup], axes: Mapping[str, Sequence[Axis]]
) -> ChannelLayout | None:
    if any(len({axis.dim for axis in found}) < len(found) for found in axes.values()):
        return None  # two groups along one axis: channels were concatenated
    tensors = {
        name: replace(spec, axes=tuple(sorted(axes.get(name, ()), key=lambda axis: axis.dim)))
        for name, spec in whole.tensors.items()
    }
    return replace(whole, groups=groups, tensors=tensors)


@dataclass(frozen=True)
class _Member:
    module: str
    layer: nn.Module
    consumes: bool
    size: int

    @classmethod
    def of(cls, item: Any, module: str) -> _Member:
        return cls(module, item.dep.target.module, "in_channels" in item.dep.handler.__name__, len(item.idxs))

    @property
    def produces(self) -> bool:
        return not self.consumes and isinstance(self.layer, nn.Conv2d | nn.Linear)

    def cut_tensors(self) -> list[tuple[str, int]]:
        if self.consumes:
            return [(f"{self.module}.weight", 1)]
        per_channel = [name for name, tensor in self.layer.state_dict().items() if tensor.dim() > 0]
        return [(f"{self.module}.{name}", 0) for name in per_channel]
