"""Which coordinates which clients hold: in cells, each of all coordinates with the same holders.

Every vector of the protocol is a row of whole cells. So two clients that hold unequal parts have in common what lies in
the same cells, and all that is done to a coordinate is done to runs of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Chosen = NDArray[np.bool_]
"""Of each cell, whether it is meant: bool of shape (cells,)."""
HolderSets = NDArray[np.uint64]
"""Of each coordinate, or group of coordinates, the clients that hold it, 64 a word and a bit each: shape (words, n)."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where ``chosen`` cells lie in a vector of cells of these ``sizes``, some of which may be empty."""

    sizes: NDArray[np.int64]
    chosen: Chosen

    @cached_property
    def count(self) -> int:
        """Coordinates of the chosen cells."""
        return int(self.sizes[self.chosen].sum())

    @cached_property
    def runs(self) -> Sequence[tuple[int, int]]:
        """First and after the last coordinate of each stretch of neighbouring cells."""
        ends = np.cumsum(self.sizes)
        there = np.flatnonzero(self.sizes)
        edges = np.diff(self.chosen[there].astype(np.int8), prepend=0, append=0)
        first = there[np.flatnonzero(edges > 0)]
        last = there[np.flatnonzero(edges < 0) - 1]
        return list(zip((ends - self.sizes)[first].tolist(), ends[last].tolist(), strict=True))

    def mask(self) -> Chosen:
        """Of each coordinate, whether it is chosen."""
        return np.repeat(self.chosen, self.sizes)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a round, in an order that all who know its plans find."""

    clients: tuple[int, ...]
    """In ascending order."""
    sizes: NDArray[np.int64]
    """Coordinates of each, shape (cells,)."""
    members: NDArray[np.bool_]
    """Who holds each, shape (cells, clients)."""

    def held_by(self, client: int) -> Chosen:
        """Those that the client holds."""
        return self.members[:, self.clients.index(client)]

    def holders(self, among: Collection[int]) -> NDArray[np.int64]:
        """How many ``among`` these clients hold each."""
        columns = [self.clients.index(client) for client in sorted(among)]
        counts: NDArray[np.int64] = self.members[:, columns].sum(axis=1, dtype=np.int64)
        return counts

    def vector_of(self, chosen: Chosen) -> NDArray[np.int64]:
        """Sizes of all cells in a vector that consists of the ``chosen`` ones alone."""
        return np.where(chosen, self.sizes, 0)


def cells_of(
    clients: Sequence[int], holder_sets: HolderSets, sizes: NDArray[np.int64]
) -> tuple[Cells, NDArray[np.intp]]:
    """The cells that groups of coordinates of these ``sizes`` lie in, shape (n,), and of each group the number of its
    cell. Bit i of a holder set is that of the i-th of ``clients``, who are in ascending order."""
    numbers = np.zeros(holder_sets.shape[1], dtype=np.intp)
    for word in holder_sets:
        distinct, found = np.unique(word, return_inverse=True)
        numbers = np.unique(numbers * len(distinct) + found, return_inverse=True)[1]
    count = int(numbers.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.intp)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    bits = np.arange(len(clients), dtype=np.uint64)
    members = holder_sets[bits // 64][:, first] >> (bits % 64)[:, None] & np.uint64(1)
    cells = Cells(
        tuple(clients), np.bincount(numbers, weights=sizes, minlength=count).astype(np.int64), members.T.astype(bool)
    )
    return cells, numbers
