"""From a network to its layout: its channels are followed once, grouped, and every group is tried out."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.profiling import part
from fedml_dapper.pruning.following import Trace, follow
from fedml_dapper.pruning.layout import Axis, ChannelGroup, ChannelLayout, Entries, Scope, TensorSpec
from fedml_dapper.pruning.verification import Fault, Trial, undisturbed

_NAMED_IN_A_NOTE = 3


@part("pruning")
def trace_layout(
    model: nn.Module, example: Tensor, scope: Scope | None, predictor: nn.Module | None = None
) -> ChannelLayout:
    """Follow the channels of ``model`` through one pass on ``example``, and keep the groups that ``scope`` allows.

    Channels form a group if they are cut alike in the same tensors. What the network puts out is never cut, nor is
    what ``predictor`` does (``model.predictor`` if there is one).

    * ``internal``: groups that are never added to channels of another layer, and that no output layer reads; an
      output layer is the predictor, or produces what the network puts out. In a residual network these are the
      channels inside each block, however many layers they run through (depthwise convolutions, squeeze-and-excite
      gates), and heads and inner widths of attention blocks. So every residual stream and z keep their width.
    * ``grouped``: every group, the residual streams too.
    * ``official_mask`` and None: none, since nothing is removed.

    Each group is tried out: where the slim network fails or is not the dense one without these channels, the group is
    left whole. ``ChannelLayout.notes`` say so, and which channels could not be followed in the first place. Raises
    :class:`ConfigError` if the network cannot run on ``example``.
    """
    predictor = getattr(model, "predictor", None) if predictor is None else predictor
    output_layer = next((name for name, layer in model.named_modules() if layer is predictor), None)
    probe = copy.deepcopy(model).eval()
    example = example.to(next((tensor.device for tensor in model.parameters()), example.device))
    try:
        with undisturbed(example):
            trace = follow(probe, example)
    except Exception as error:  # whatever the user's network raises
        raise ConfigError(
            f"model: cannot be followed on an example of shape {tuple(example.shape)} ({str(example.dtype).removeprefix('torch.')}):"
            f" {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}; check the network and its input"
        ) from error
    graph = _Graph(trace, list(model.state_dict()), output_layer)
    trainable = {name for name, _ in model.named_parameters()}
    tensors = {
        name: TensorSpec(tuple(tensor.shape), tensor.dtype, name in trainable, trace.macs.get(name, 0))
        for name, tensor in model.state_dict().items()
    }
    whole = ChannelLayout({}, tensors, products=graph.products())
    if scope is None or scope == "official_mask":
        return whole
    groups = graph.groups(internal=scope == "internal")
    layout = _cut(whole, groups, graph, _aliases(model))
    return _tried(layout, probe, example, graph.notes(internal=scope == "internal"))


@dataclass(frozen=True)
class _Found:
    """A group, the roots of its channels in order, and where they are."""

    group: ChannelGroup
    roots: Tensor


class _Graph:
    """The channels of a trace, put together to groups."""

    def __init__(self, trace: Trace, order: Sequence[str], output_layer: str | None) -> None:
        self._trace = trace
        self._order = {name: position for position, name in enumerate(order)}
        channels = trace.channels
        self.bound = {key: channels.roots(ids) for key, ids in trace.bound.items()}
        self._out = torch.zeros(len(channels), dtype=torch.bool)
        for ids in trace.outputs:
            self._out[channels.roots(ids[ids >= 0])] = True
        rows = {name: self.bound[name, dim] for name, dim in trace.producers if (name, dim) in self.bound}
        last = {
            name for name, roots in rows.items()
            if name.rpartition(".")[0] == output_layer or bool(self._out[roots[roots >= 0]].any())
        }  # fmt: skip
        for name in last:
            self._out[rows[name][rows[name] >= 0]] = True
        self._free = channels.free & ~self._out
        self._inner = ~channels.added
        for (name, dim), roots in self.bound.items():
            if name in last and (name, dim) not in trace.producers:
                self._inner[roots[roots >= 0]] = False

    def groups(self, internal: bool) -> list[_Found]:
        """The groups that may be cut, in the order of the layers that they are named after."""
        allowed = self._free & self._inner if internal else self._free
        places: dict[int, list[tuple[tuple[str, int], int]]] = defaultdict(list)
        for key, roots in self.bound.items():
            found, counts = roots[roots >= 0].unique(return_counts=True)
            for root, count in zip(found.tolist(), counts.tolist(), strict=True):
                if allowed[root]:
                    places[root].append((key, count))
        alike: dict[tuple[tuple[tuple[str, int], int], ...], list[int]] = defaultdict(list)
        for root in sorted(places):
            alike[tuple(places[root])].append(root)
        found_groups = []
        for where, roots in alike.items():
            producers = sorted(
                {key[0] for key, _ in where if key in self._trace.producers}, key=self._order.__getitem__
            )
            if producers and len(roots) > 1:
                group = ChannelGroup(_layer(producers[0]), len(roots), tuple(producers))
                found_groups.append(_Found(group, torch.tensor(roots)))
        found_groups.sort(key=lambda each: (self._order[each.group.producers[0]], int(each.roots[0])))
        return _named_apart(found_groups)

    def axis(self, found: _Found, dim: int, roots: Tensor) -> Axis | None:
        """Where the channels of a group lie among ``roots``, the channels along an axis."""
        channels = torch.searchsorted(found.roots, roots).clamp(max=len(found.roots) - 1)
        entries = (found.roots[channels] == roots).nonzero().flatten()
        if not len(entries):
            return None
        index = entries[channels[entries].sort(stable=True).indices].view(len(found.roots), -1)
        repeat = index.shape[1]
        if len(entries) == len(roots) and torch.equal(index.flatten(), entries):
            return Axis(dim, found.group.name, repeat)
        return Axis(dim, found.group.name, repeat, Entries(index))

    def products(self) -> dict[str, TensorSpec]:
        """The products of activations, not cut yet."""
        return {
            f"{product.layer}#{number}": TensorSpec((len(product.ids),), torch.float32, False, product.macs_per_element)
            for number, product in enumerate(self._trace.products)
        }

    def product_roots(self) -> dict[str, Tensor]:
        """The channels along each product."""
        roots = (self._trace.channels.roots(product.ids) for product in self._trace.products)
        return dict(zip(self.products(), roots, strict=True))

    def notes(self, internal: bool) -> list[str]:
        """Which layers keep channels that the scope would let them lose, and why."""
        wanted = ~self._out & self._inner if internal else ~self._out
        filters = {
            name: roots for name, dim in self._trace.producers
            if len(roots := self.bound[name, dim].unique()) > 1
        }  # fmt: skip
        lines: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name in sorted(filters, key=self._order.__getitem__):
            roots = filters[name]
            held = roots[(roots >= 0) & wanted[roots.clamp(min=0)] & ~self._free[roots.clamp(min=0)]]
            for hold in self._trace.channels.held:
                if bool(torch.isin(held, self._trace.channels.roots(hold.ids)).any()):
                    lines[hold.layer, hold.why].append(_layer(name))
                    break
        return [
            f"{_listed(layers)} not cut: the channels cannot be followed through {why}"
            + (f" in `{layer}`" if layer else "")
            for (layer, why), layers in lines.items()
        ]


def _layer(weight: str) -> str:
    """The layer that a weight belongs to."""
    for name in ("weight", "in_proj_weight"):
        weight = weight.removesuffix(f".{name}")
    return weight


def _listed(layers: Sequence[str]) -> str:
    shown = ", ".join(f"`{layer}`" for layer in layers[:_NAMED_IN_A_NOTE])
    return (
        f"{shown} and {len(layers) - _NAMED_IN_A_NOTE} more are"
        if len(layers) > _NAMED_IN_A_NOTE
        else (f"{shown} is" if len(layers) == 1 else f"{shown} are")
    )


def _named_apart(groups: Iterable[_Found]) -> list[_Found]:
    """Groups of the same first layer, told apart by a number."""
    seen: dict[str, int] = defaultdict(int)
    apart = []
    for found in groups:
        name = found.group.name
        seen[name] += 1
        if seen[name] > 1:
            found = replace(found, group=replace(found.group, name=f"{name}#{seen[name]}"))
        apart.append(found)
    return apart


def _aliases(model: nn.Module) -> Mapping[str, str]:
    """Every name of a tensor -> its first."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def _cut(whole: ChannelLayout, groups: Sequence[_Found], graph: _Graph, aliases: Mapping[str, str]) -> ChannelLayout:
    """A layout whose tensors and products say where the groups lie."""
    axes: dict[str, list[Axis]] = defaultdict(list)
    for (name, dim), roots in graph.bound.items():
        axes[name] += (axis for found in groups if (axis := graph.axis(found, dim, roots)) is not None)
    for name, roots in graph.product_roots().items():
        axes[name] += (axis for found in groups if (axis := graph.axis(found, 0, roots)) is not None)

    def placed(spec: TensorSpec, name: str) -> TensorSpec:
        return replace(spec, axes=tuple(sorted(axes.get(name, ()), key=lambda axis: axis.dim)))

    return replace(
        whole,
        groups={found.group.name: found.group for found in groups},
        tensors={name: placed(spec, aliases[name]) for name, spec in whole.tensors.items()},
        products={name: placed(spec, name) for name, spec in whole.products.items()},
    )


def without(layout: ChannelLayout, groups: Iterable[str]) -> ChannelLayout:
    """The layout in which these groups are left whole."""
    gone = set(groups)

    def kept(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        return {
            name: replace(spec, axes=tuple(axis for axis in spec.axes if axis.group not in gone))
            for name, spec in specs.items()
        }

    return replace(
        layout,
        groups={name: group for name, group in layout.groups.items() if name not in gone},
        tensors=kept(layout.tensors),
        products=kept(layout.products),
    )


def _tried(layout: ChannelLayout, probe: nn.Module, example: Tensor, notes: Sequence[str]) -> ChannelLayout:
    """The layout of those groups that can be cut in fact: all at once if that works, or each by itself."""
    trial = Trial(probe, example)
    at_fault: dict[str, Fault] = {}
    if layout.groups and trial.fault(layout, _trial_widths(layout)) is not None:
        for name in layout.groups:
            fault = trial.fault(layout, {name: _trial_widths(layout)[name]})
            if fault is not None:
                at_fault[name] = fault
    tried = [f"`{name}` is not cut: without some of its channels {fault}" for name, fault in at_fault.items()]
    return replace(without(layout, at_fault), notes=(*notes, *tried))


def _trial_widths(layout: ChannelLayout) -> dict[str, int]:
    """About two thirds of every group; not a half, which more layers would take than can be cut anyhow."""
    return {name: max(1, group.channels - (group.channels + 2) // 3) for name, group in layout.groups.items()}
