"""Channels as numbers, and which of them have to be kept or dropped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NONE = -1
"""Number of an entry that belongs to no channel, and so is never cut."""


RANGE = "a fixed range of channels is taken"
SPREAD = "a view spreads the channels over several axes"


@dataclass(frozen=True, eq=False)
class Hold:
    """Channels that are always kept, and why."""

    ids: Tensor
    layer: str
    why: str


class Channels:
    """Union-find over channels. Channels that were joined have the same root, the lowest of their numbers."""

    def __init__(self) -> None:
        self._parent = torch.empty(0, dtype=torch.int64)
        self._produced = torch.empty(0, dtype=torch.bool)
        self.held: list[Hold] = []
        self._added: list[Tensor] = []
        self._parts: list[tuple[Sequence[Tensor], str]] = []
        self._attended: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int, *, produced: bool = True) -> Tensor:
        """Return the numbers of ``count`` new channels: int64, rising.

        ``produced`` says that a layer produces them; no layer does those of a parameter that is used as an activation.
        """
        ids = torch.arange(len(self), len(self) + count)
        self._parent = torch.cat([self._parent, ids])
        self._produced = torch.cat([self._produced, torch.full((count,), produced)])
        return ids

    def roots(self, ids: Tensor) -> Tensor:
        """Return the root of each of ``ids``, which stands for all channels joined with it; NONE stays."""
        return torch.where(ids >= 0, self._parent[ids.clamp(min=0)], ids) if len(self) else ids

    def hold(self, ids: Tensor, layer: str, why: str) -> None:
        """Never drop these channels."""
        if bool((ids >= 0).any()):
            self.held.append(Hold(ids[ids >= 0], layer, why))

    def join(self, left: Tensor, right: Tensor, layer: str, why: str, *, added: bool = False) -> None:
        """Keep or drop channels together, pair by pair; a channel paired with NONE is held.

        ``added`` says that values of the two are added to each other.
        """
        both = (left >= 0) & (right >= 0)
        self.hold(torch.cat([left[~both], right[~both]]), layer, why)
        left = left[both]
        right = right[both]
        if added:
            of_layers = self._are_produced(left) & self._are_produced(right)
            self._added.append(left[of_layers & (self.roots(left) != self.roots(right))])
        while True:  # hang every root below the lowest that it meets; repeated, as scatter keeps one of several
            a = self.roots(left)
            b = self.roots(right)
            if torch.equal(a, b):
                return
            self._parent.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
            # point every channel at its root, so that roots() is a single look-up
            while not torch.equal(self._parent, grand := self._parent[self._parent]):
                self._parent = grand

    def _are_produced(self, ids: Tensor) -> Tensor:
        """Return whether a layer produces these channels, or any that were joined with them."""
        by_root = torch.zeros(len(self), dtype=torch.bool)
        by_root[self._parent[self._produced]] = True
        return by_root[self.roots(ids)]

    def split(self, parts: Sequence[Tensor], layer: str) -> None:
        """Note a split of a tensor into ``parts`` of equal size, which have to lose the same channels."""
        self._parts.append((parts, layer))

    def attend(self, ids: Tensor) -> None:
        """Note that these channels are heads of attention."""
        self._attended.append(ids[ids >= 0])

    @property
    def attended(self) -> Tensor:
        """Whether each channel belongs to a head of attention: bool by root."""
        attended = torch.zeros(len(self), dtype=torch.bool)
        for ids in self._attended:
            attended[self.roots(ids)] = True
        return attended

    def settle(self) -> None:
        """Hold the channels of split parts that would not lose the same channels. Called once, after all joins."""
        for parts, layer in self._parts:
            first = self.roots(parts[0])
            if not all(torch.equal(first, self.roots(part)) for part in parts[1:]):
                self.hold(torch.cat(list(parts)), layer, RANGE)

    @property
    def free(self) -> Tensor:
        """Whether each channel may be dropped: bool by root."""
        free = torch.ones(len(self), dtype=torch.bool)
        for hold in self.held:
            free[self.roots(hold.ids)] = False
        return free

    @property
    def added(self) -> Tensor:
        """Whether each channel was added to one of another layer: bool by root."""
        added = torch.zeros(len(self), dtype=torch.bool)
        for ids in self._added:
            added[self.roots(ids)] = True
        return added
