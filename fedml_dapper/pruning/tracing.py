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
from fedml_dapper.pruning.running import first_line, undisturbed
from fedml_dapper.pruning.verification import Fault, Trial

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
    example = example.to(next((tensor.device for tensor in model.parameters()), example.device))
    probe = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()
    try:
        with undisturbed(example):
            trace = follow(probe, example)
    except Exception as error:  # whatever the user's network raises
        raise ConfigError(
            f"model: cannot be followed on an example of {example.dtype} and shape {tuple(example.shape)}:"
            f" {first_line(error)}; check the network and what it is given"
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
    return _tried(layout, model, example, graph.notes(internal=scope == "internal"))


@dataclass(frozen=True, eq=False)
class _Found:
    """A group, the roots of its channels in order, and the tensors and axes where they are."""

    group: ChannelGroup
    roots: Tensor
    places: frozenset[tuple[str, int]]


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
        alike = torch.zeros(len(allowed), dtype=torch.int64)  # equal for roots that as often lie at the same places
        numbers = torch.Generator().manual_seed(len(allowed))
        for roots in self.bound.values():
            number = torch.randint(2**62, (1,), generator=numbers)
            alike.scatter_add_(0, roots[roots >= 0], number.expand(int((roots >= 0).sum())))
        candidates = (allowed & (alike != 0)).nonzero().flatten()
        _, which = alike[candidates].unique(return_inverse=True)
        found = []
        for number in range(int(which.max()) + 1 if len(which) else 0):
            roots = candidates[which == number]
            places = frozenset(key for key, bound in self.bound.items() if bool((bound == roots[0]).any()))
            producers = sorted({name for name, dim in places & self._trace.producers}, key=self._order.__getitem__)
            if producers and len(roots) > 1:
                found.append(_Found(ChannelGroup(_layer(producers[0]), len(roots), tuple(producers)), roots, places))
        found.sort(key=lambda each: (self._order[each.group.producers[0]], int(each.roots[0])))
        return _named_apart(found)

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
        numbered = name if seen[name] == 1 else f"{name}#{seen[name]}"
        apart.append(replace(found, group=replace(found.group, name=numbered)))
    return apart


def _aliases(model: nn.Module) -> Mapping[str, str]:
    """Every name of a tensor -> its first."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def _cut(whole: ChannelLayout, groups: Sequence[_Found], graph: _Graph, aliases: Mapping[str, str]) -> ChannelLayout:
    """A layout whose tensors and products say where the groups lie."""
    axes: dict[str, list[Axis]] = defaultdict(list)
    for found in groups:
        for name, dim in found.places:
            axes[name] += filter(None, [graph.axis(found, dim, graph.bound[name, dim])])
    for name, roots in graph.product_roots().items():
        axes[name] += filter(None, (graph.axis(found, 0, roots) for found in groups))

    def placed(spec: TensorSpec, name: str) -> TensorSpec:
        return replace(spec, axes=tuple(sorted(axes.get(name, ()), key=_position)))

    return replace(
        whole,
        groups={found.group.name: found.group for found in groups},
        tensors={name: placed(spec, aliases[name]) for name, spec in whole.tensors.items()},
        products={name: placed(spec, name) for name, spec in whole.products.items()},
    )


def _position(axis: Axis) -> tuple[int, int]:
    return axis.dim, 0 if axis.entries is None else int(axis.entries.index.min())


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


def _tried(layout: ChannelLayout, model: nn.Module, example: Tensor, notes: Sequence[str]) -> ChannelLayout:
    """The layout of those groups that can be cut in fact."""
    faults = _faults(Trial(model, example), layout, list(layout.groups)) if layout.groups else {}
    tried = [f"`{name}` is not cut: without some of its channels {fault}" for name, fault in faults.items()]
    return replace(without(layout, faults) if faults else layout, notes=(*notes, *tried))


def _faults(trial: Trial, layout: ChannelLayout, names: Sequence[str]) -> dict[str, Fault]:
    """Which of the groups cannot be cut, and why: all are tried at once, and, if that fails, either half of them."""
    # about a third is dropped: a half is what a network that splits its channels in two might take by chance
    widths = {name: layout.groups[name].channels - (layout.groups[name].channels + 2) // 3 for name in names}
    fault = trial.fault(layout, widths)
    if fault is None:
        return {}
    if len(names) == 1:
        return {names[0]: fault}
    half = len(names) // 2
    found = {**_faults(trial, layout, names[:half]), **_faults(trial, layout, names[half:])}
    return found or dict.fromkeys(names, fault)
