"""Which channels of a network go together, as plain data: groups of channels, and where each tensor holds them.

``tracing`` finds it once per network. Everything else in this room (plans, slim models, recovery, footprints) reads
only this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, eq=False)
class Entries:
    """Which entries of an axis belong to which channel: int64 of shape (channels, entries of each), equal by value."""

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
    """The channels of one ``group`` along one axis of a tensor, each with as many entries.

    Without ``entries`` these fill the axis, and ``repeat`` consecutive ones belong to one channel. Otherwise
    ``entries`` says where they are, and what it leaves out belongs to no channel of the group: to another's, where
    several groups stand side by side (concatenation), or to none.
    """

    dim: int
    group: str
    repeat: int = 1
    entries: Entries | None = None
    filled: bool = False
    """Whether activations keep their full width there, with zeros for what is cut (:class:`FilledLinear`)."""

    def channels(self, size: int) -> int:
        """How many channels lie along the axis, which has ``size`` entries."""
        return size // self.repeat if self.entries is None else len(self.entries.index)

    def of(self, channels: Tensor) -> Tensor:
        """The entries of ``channels``: int64 of shape (len(channels), repeat)."""
        if self.entries is None:
            return channels[:, None] * self.repeat + torch.arange(self.repeat)
        return self.entries.index[channels]


@dataclass(frozen=True)
class TensorSpec:
    """A state-dict entry of the dense model, and how it may be cut."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    """Whether it is a parameter; of one with several names, the first."""
    macs_per_element: int | Fraction
    """Multiply-accumulates per entry and example: positions for the weights of convolutions and linear layers,
    2 x positions for those of norms, 0 for the rest. Broken where parts of a tensor see other numbers of positions, as
    queries and keys of cross-attention do."""
    axes: tuple[Axis, ...] = ()

    def shape_at(self, widths: Widths) -> tuple[int, ...]:
        """The shape left when every group keeps its width."""
        shape = list(self.shape)
        for axis in self.axes:
            if axis.group in widths:
                dropped = axis.channels(self.shape[axis.dim]) - widths[axis.group]
                shape[axis.dim] -= dropped * axis.repeat
        return tuple(shape)


@dataclass(frozen=True)
class ChannelLayout:
    """The prunable groups of an architecture under one scope, and all its tensors."""

    groups: Mapping[str, ChannelGroup]
    tensors: Mapping[str, TensorSpec]
    uplink: Uplink = "fp32"
    """In what the tensors travel to the server."""
    importance: Importance = "filters"
    """By what standardised filters are compared."""
    products: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Activations multiplied with each other (attention), as if by a weight of that shape; by layer and count."""
    notes: tuple[str, ...] = ()
    """Which layers keep all their channels because these cannot be followed, and why: a line each."""

    def widths_of(self, shapes: Mapping[str, Sequence[int]]) -> Widths | None:
        """The widths at which the tensors in ``shapes``, which may be some of all, have these shapes.

        The reverse of :meth:`TensorSpec.shape_at`; None where there are none such.
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
        """Entries that ``axis`` lacks."""
        return (self.groups[axis.group].channels - widths[axis.group]) * axis.repeat

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters, i.e. of all tensors but the buffers."""
        return [name for name, spec in self.tensors.items() if spec.trainable]
