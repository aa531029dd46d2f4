"""Groups of the channels that were followed, and where each tensor holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedml_dapper.pruning.layout import Axis, ChannelGroup, Entries, LinearMap, TensorSpec
from fedml_dapper.pruning.tracing.follower import Trace, holder

_NAMES_PER_NOTE = 3
_TOGETHER = "all channels would have to go together, as groups of convolutions or norms join them"


@dataclass(frozen=True, eq=False)
class FoundGroup:
    """A group, the roots of its channels in order, and the tensors and axes that hold them."""

    group: ChannelGroup
    roots: Tensor
    places: frozenset[tuple[str, int]]
    filled: bool = False
    """Whether activations keep their full width, with zeros for what is cut."""
    borrower: str | None = None
    """A layer that uses a producer's weight without calling the one that holds it, which then cannot fill anything."""


class Graph:
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
            name
            for name, roots in rows.items()
            if name.rpartition(".")[0] == output_layer or bool(self._out[roots[roots >= 0]].any())
        }
        self.output_layers = {name.rpartition(".")[0] for name in last}
        for name in last:
            self._out[rows[name][rows[name] >= 0]] = True
        self._free = channels.free & ~self._out
        self._inner = ~channels.added
        for (name, dim), roots in self.bound.items():
            if name in last and (name, dim) not in trace.producers:
                self._inner[roots[roots >= 0]] = False

    def produces(self, name: str, dim: int) -> bool:
        """Whether a layer's outputs lie along an axis of one of its tensors."""
        return (name, dim) in self._trace.producers

    def groups(self, internal: bool) -> list[FoundGroup]:
        """Return the groups that may be cut, in the order of the layers that they are named after."""
        return self._together(self._free & self._inner if internal else self._free)

    def heads(self, internal: bool, linear: Mapping[str, LinearMap]) -> list[FoundGroup]:
        """Return the heads of attention between the ``linear`` layers that make and read them, of a trace ``by_heads``.

        Activations between these layers keep their full width, so that nothing there forbids a cut, or is cut itself.
        """
        allowed = self._trace.channels.attended & ~self._out
        found = []
        for group in self._together(allowed & self._inner if internal else allowed):
            places = frozenset(place for place in group.places if self._is_filled(place, group, linear))
            rows = {(name, linear[layer].rows) for name in group.group.producers if (layer := holder(name)) in linear}
            if len(rows) == len(group.group.producers) and rows <= places:
                borrowers = [
                    self._trace.borrowed[name] for name in group.group.producers if name in self._trace.borrowed
                ]
                found.append(replace(group, places=places, filled=True, borrower=next(iter(borrowers), None)))
        return found

    def _is_filled(self, place: tuple[str, int], group: FoundGroup, linear: Mapping[str, LinearMap]) -> bool:
        """Whether all channels along an axis of a linear layer's tensor belong to the group."""
        layer, _, tensor = place[0].rpartition(".")
        known = linear.get(layer)
        is_its = known is not None and tensor in (known.matrix, known.bias, *known.adapter)
        return is_its and bool(torch.isin(self.bound[place], group.roots).all())

    def _together(self, allowed: Tensor) -> list[FoundGroup]:
        """Group those ``allowed`` channels that lie in the same tensors."""
        # Each place gets a random number, and each root the sum over its places: equal sums mean equal places.
        alike = torch.zeros(len(allowed), dtype=torch.int64)
        numbers = torch.Generator().manual_seed(len(allowed))
        for roots in self.bound.values():
            number = torch.randint(2**62, (1,), generator=numbers)
            alike.scatter_add_(0, roots[roots >= 0], number.expand(int((roots >= 0).sum())))
        candidates = (allowed & (alike != 0)).nonzero().flatten()
        found = []
        for each in torch.unique(alike[candidates]):
            roots = candidates[alike[candidates] == each]
            places = frozenset(key for key, bound in self.bound.items() if bool((bound == roots[0]).any()))
            producers = sorted({name for name, dim in places & self._trace.producers}, key=self._order.__getitem__)
            if producers and len(roots) > 1:
                partner = self._partner(producers, places)
                group = ChannelGroup(_layer(producers[0]), len(roots), tuple(producers), partner)
                found.append(FoundGroup(group, roots, places))
        found.sort(key=lambda each: (self._order[each.group.producers[0]], int(each.roots[0])))
        return _named_apart(found)

    def _partner(self, producers: Sequence[str], places: Collection[tuple[str, int]]) -> str | None:
        """Return the matrix B of an adapter whose A is the only one of ``producers``; None of other groups.

        Adapters are this package's, or those that peft puts into a network, which are known by their names.
        """
        if len(producers) > 1:
            return None
        of_peft = producers[0].replace(".lora_A.", ".lora_B.")
        partner = self._trace.partners.get(producers[0], of_peft if of_peft != producers[0] else None)
        return partner if (partner, 1) in places and len(places) == 2 else None

    def axis(self, found: FoundGroup, dim: int, roots: Tensor) -> Axis | None:
        """Return where a group lies along an axis whose channels are ``roots``; None where it does not."""
        channels = torch.searchsorted(found.roots, roots).clamp(max=len(found.roots) - 1)
        entries = (found.roots[channels] == roots).nonzero().flatten()
        if not len(entries):
            return None
        # sorted by channel, the entries form a matrix, as each channel of a group has equally many
        index = entries[channels[entries].sort(stable=True).indices].view(len(found.roots), -1)
        repeat = index.shape[1]
        if len(entries) == len(roots) and torch.equal(index.flatten(), entries):
            return Axis(dim, found.group.name, repeat, filled=found.filled)
        return Axis(dim, found.group.name, repeat, Entries(index), found.filled)

    def products(self) -> dict[str, TensorSpec]:
        """The products of activations, not cut yet, by layer and number."""
        return {
            f"{product.layer}#{number}": TensorSpec((len(product.ids),), torch.float32, False, product.macs_per_element)
            for number, product in enumerate(self._trace.products)
        }

    def product_roots(self) -> dict[str, Tensor]:
        """The channels along each of :meth:`products`."""
        roots = (self._trace.channels.roots(product.ids) for product in self._trace.products)
        return dict(zip(self.products(), roots, strict=True))

    def notes(self, internal: bool, cut: Collection[str]) -> list[str]:
        """Return a line for each reason why layers keep channels that the scope would allow to cut.

        Layers whose weights are ``cut`` in another way are left out.
        """
        wanted = ~self._out & self._inner if internal else ~self._out
        every = {
            name: torch.unique(self.bound[name, dim]) for name, dim in self._trace.producers
            if len(self.bound[name, dim]) > 1
        }  # fmt: skip
        filters = {name: roots for name, roots in every.items() if len(roots) > 1}
        together = [
            _layer(name) for name in sorted(every.keys() - filters.keys(), key=self._order.__getitem__)
            if every[name][0] >= 0 and bool((wanted & self._free)[every[name][0]])
        ]  # fmt: skip
        layers = defaultdict[str, list[str]](list)
        places = defaultdict[str, list[str]](list)
        for name in sorted(filters.keys() - set(cut), key=self._order.__getitem__):
            roots = filters[name]
            held = roots[(roots >= 0) & wanted[roots.clamp(min=0)] & ~self._free[roots.clamp(min=0)]]
            for hold in self._trace.channels.held:
                if bool(torch.isin(held, self._trace.channels.roots(hold.ids)).any()):
                    layers[hold.why].append(_layer(name))
                    places[hold.why].append(hold.layer)
                    break
        for layer, why in self._trace.nameless:
            layers[why].append(layer)
            places[why].append(layer)
        notes = [
            f"{listed(dict.fromkeys(layers[why]))} not cut: {why} in {listed(dict.fromkeys(places[why]))}"
            for why in layers
        ]
        return [*notes, f"{listed(together)} not cut: {_TOGETHER}"] if together else notes


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    quoted = [f"`{name}`" if name else "the network itself" for name in names]
    more = len(quoted) - _NAMES_PER_NOTE
    return ", ".join(quoted[:_NAMES_PER_NOTE]) + (f" and {more} more" if more > 0 else "")


def _layer(weight: str) -> str:
    """The layer that a weight belongs to."""
    for name in ("weight", "in_proj_weight"):
        weight = weight.removesuffix(f".{name}")
    return weight


def _named_apart(groups: Iterable[FoundGroup]) -> list[FoundGroup]:
    """Number groups that are named after the same layer."""
    seen: dict[str, int] = defaultdict(int)
    apart = []
    for found in groups:
        name = found.group.name
        seen[name] += 1
        numbered = name if seen[name] == 1 else f"{name}#{seen[name]}"
        apart.append(replace(found, group=replace(found.group, name=numbered)))
    return apart
