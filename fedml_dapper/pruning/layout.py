"""Layout of a network's channels as plain data: groups that are cut together, and where each tensor holds them.

``tracing`` finds the layout once per network. Everything else in this package (plans, slim models, recovery,
footprints) reads nothing else of the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.config import Importance, Uplink

Scope = Literal["internal", "grouped", "official_mask"]
Widths = Mapping[str, int]
"""Group name -> number of channels kept; groups that are not named keep all of theirs."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that are cut alike in the same tensors, named after the first layer that produces them."""

    name: str
    channels: int
    producers: tuple[str, ...]
    """Weights whose filters produce the channels; several where outputs are added together."""
    partner: str | None = None
    """Matrix B of an adapter, where the channels are its rank components and the one producer is A; None for others.
    A component's importance is the norm of its part in B A, |b_j| |a_j|."""


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of an axis by channel: int64 of shape (channels, entries per channel). Compared and hashed by value."""

    index: Tensor

    @cached_property
    def _bytes(self) -> bytes:
        return self.index.numpy().tobytes()

    @cached_property
    def _hash(self) -> int:
        return hash((self.index.shape, self._bytes))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        return self is other or (self.index.shape == other.index.shape and self._bytes == other._bytes)


@dataclass(frozen=True)
class Axis:
    """Channels of one group along one axis of a tensor; all channels have equally many entries."""

    dim: int
    group: str
    repeat: int = 1
    """Entries per channel."""
    entries: Entries | None = None
    """Places of each channel's entries. Without it channels fill the axis, ``repeat`` consecutive entries each. Entries
    that it leaves out belong to another group, where several lie side by side (concatenation), or to none."""
    filled: bool = False
    """Whether activations keep their full width along it, with zeros for what is cut (:class:`FilledLinear`)."""

    def channels(self, size: int) -> int:
        """Return how many channels lie along the axis, which has ``size`` entries."""
        return size // self.repeat if self.entries is None else len(self.entries.index)

    def of(self, channels: Tensor) -> Tensor:
        """Return the entries of ``channels``, int64 of shape (len(channels), repeat)."""
        if self.entries is None:
            return channels[:, None] * self.repeat + torch.arange(self.repeat)
        return self.entries.index[channels]


@dataclass(frozen=True)
class TensorSpec:
    """A state-dict entry of the dense model, and how it may be cut."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    """Whether it is a parameter. Of a parameter with several names only the first counts."""
    macs_per_element: int | Fraction
    """Multiply-accumulates per entry and example: output positions for the weights of convolutions and linear layers,
    twice the positions for those of norms, 0 for the rest. A fraction where parts of a tensor see other numbers of
    positions, as queries and keys of cross-attention do."""
    axes: tuple[Axis, ...] = ()
    """Axes that are cut, those of a layer's outputs first."""
    alias_of: str | None = None
    """Name under which the same tensor comes first, where it has several and this is another."""
    frozen: bool = False
    """Whether it is a parameter that nobody changes: ``requires_grad=False``, and the server does not move it
    (:class:`~fedml_dapper.models.frozen.MovedAtServer`). Every process builds it with the network, so it never
    travels."""

    def shape_at(self, widths: Widths) -> tuple[int, ...]:
        """Return the shape of the tensor once every group is cut to its width."""
        shape = list(self.shape)
        for axis in self.axes:
            if axis.group in widths:
                dropped = axis.channels(self.shape[axis.dim]) - widths[axis.group]
                shape[axis.dim] -= dropped * axis.repeat
        return tuple(shape)


@dataclass(frozen=True)
class LinearMap:
    """Where a layer that multiplies its input by a matrix, and perhaps adds a vector, holds these."""

    matrix: str
    """Name of the matrix in the layer."""
    bias: str | None
    rows: int
    """Axis of the matrix along which the outputs lie: 0 as in ``nn.Linear``, 1 in ``x @ matrix``."""
    adapter: tuple[str, ...] = ()
    """Names of the adapter's matrices, cut along inputs and outputs like the layer's own; empty where there is none."""

    @property
    def columns(self) -> int:
        """Axis of the matrix along which the inputs lie."""
        return 1 - self.rows


@dataclass(frozen=True)
class ChannelLayout:
    """The prunable groups of an architecture under one scope, and all its tensors."""

    groups: Mapping[str, ChannelGroup]
    tensors: Mapping[str, TensorSpec]
    uplink: Uplink = "fp32"
    """Number format in which tensors travel to the server."""
    downlink: Uplink = "fp32"
    """Number format in which they travel to clients."""
    importance: Importance = "filters"
    """What the importance of standardised filters is computed from."""
    products: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Products of two activations (attention), counted as if one were a weight of that shape; by layer and number."""
    linear_maps: Mapping[str, LinearMap] = field(default_factory=dict)
    """Layers that only multiply by a matrix, ``nn.Linear`` among them, by name."""
    notes: tuple[str, ...] = ()
    """One line each on layers whose channels cannot be followed and are kept, with the reason."""

    def widths_of(self, shapes: Mapping[str, Sequence[int]]) -> Widths | None:
        """Return the widths at which the tensors in ``shapes`` have these shapes; None where there are none.

        The reverse of :meth:`TensorSpec.shape_at`. ``shapes`` may leave tensors out.
        """
        widths: dict[str, int] = {}
        sides = [
            (size - found, [axis for axis in spec.axes if axis.dim == dim])
            for name, spec in self.tensors.items()
            if name in shapes
            for dim, (size, found) in enumerate(zip(spec.shape, shapes[name], strict=False))
        ]
        known = -1
        while known < len(widths):  # where groups stand side by side, one follows from the others
            known = len(widths)
            for lost, axes in sides:
                unknown = [axis for axis in axes if axis.group not in widths]
                if len({axis.group for axis in unknown}) == 1:
                    rest = lost - sum(self._lost(axis, widths) for axis in axes if axis.group in widths)
                    channels = self.groups[unknown[0].group].channels
                    entries = sum(axis.repeat for axis in unknown)
                    widths[unknown[0].group] = channels - rest // entries
        cut = {name: width for name, width in widths.items() if width != self.groups[name].channels}
        fits = all(
            name in self.tensors and self.tensors[name].shape_at(cut) == tuple(shape) for name, shape in shapes.items()
        )
        return cut if fits else None

    def _lost(self, axis: Axis, widths: Widths) -> int:
        """Entries that are cut from ``axis``."""
        return (self.groups[axis.group].channels - widths[axis.group]) * axis.repeat

    @cached_property
    def travelling(self) -> tuple[str, ...]:
        """Names of the tensors that messages may hold: all but frozen ones."""
        return tuple(name for name, spec in self.tensors.items() if not spec.frozen)

    def is_statistic(self, name: str) -> bool:
        """Return whether a tensor is measured, as BatchNorm's mean and variance, rather than learnt or counted."""
        spec = self.tensors[self.tensors[name].alias_of or name]
        return spec.dtype.is_floating_point and not spec.trainable

    def unify(self, tensors: dict[str, Tensor]) -> None:
        """Give every name of a tensor the values that ``tensors`` have under its first.

        What changes parameters at the server changes each once, by its first name; a model would take the last.
        """
        for name, spec in self.tensors.items():
            if spec.alias_of is not None and spec.alias_of in tensors and name in tensors:
                tensors[name] = tensors[spec.alias_of].clone()

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters that are trained, i.e. of all tensors but buffers and frozen parameters."""
        return [name for name, spec in self.tensors.items() if spec.trainable and not spec.frozen]


def without(layout: ChannelLayout, groups: Iterable[str]) -> ChannelLayout:
    """Return the layout in which these groups are left whole."""
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
