"""Cells of a round: each consists of all coordinates that the same set of clients holds.

Every vector of the protocol is a row of whole cells. So the common coordinates of two clients that hold unequal parts
are whole cells, and operations work on long runs of coordinates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Chosen = NDArray[np.bool_]
"""Selection of cells: bool of shape (cells,)."""
HolderSets = NDArray[np.uint64]
"""Bit sets of the clients that hold each of n coordinates, or groups of coordinates, 64 clients per word: shape (words,
n)."""


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of ``chosen`` cells in a vector of cells of these ``sizes``, some of which may be empty."""

    sizes: NDArray[np.int64]
    chosen: Chosen

    @cached_property
    def count(self) -> int:
        """Number of coordinates in the chosen cells."""
        return int(self.sizes[self.chosen].sum())

    @cached_property
    def runs(self) -> Sequence[tuple[int, int]]:
        """Start and stop of each run of neighbouring chosen coordinates."""
        ends = np.cumsum(self.sizes)
        not_empty = np.flatnonzero(self.sizes)
        edges = np.diff(self.chosen[not_empty].astype(np.int8), prepend=0, append=0)
        first = not_empty[np.flatnonzero(edges > 0)]
        last = not_empty[np.flatnonzero(edges < 0) - 1]
        return list(zip((ends - self.sizes)[first].tolist(), ends[last].tolist(), strict=True))

    def mask(self) -> Chosen:
        """Return for each coordinate whether it is chosen."""
        return np.repeat(self.chosen, self.sizes)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a round, in an order that follows from the round's plans, so that all clients find the same."""

    clients: tuple[int, ...]
    """Client ids, ascending."""
    sizes: NDArray[np.int64]
    """Number of coordinates in each cell, shape (cells,)."""
    members: NDArray[np.bool_]
    """Whether each client holds each cell, shape (cells, clients)."""

    def held_by(self, client: int) -> Chosen:
        """Return the cells that the client holds."""
        return self.members[:, self.clients.index(client)]

    def holders(self, among: Collection[int]) -> NDArray[np.int64]:
        """Return how many of the clients ``among`` hold each cell, shape (cells,)."""
        columns = [self.clients.index(client) for client in sorted(among)]
        counts: NDArray[np.int64] = self.members[:, columns].sum(axis=1, dtype=np.int64)
        return counts

    def vector_of(self, chosen: Chosen) -> NDArray[np.int64]:
        """Return the sizes of all cells in a vector that consists of the ``chosen`` ones alone; others have size 0."""
        return np.where(chosen, self.sizes, 0)


def cells_of(
    clients: Sequence[int], holder_sets: HolderSets, sizes: NDArray[np.int64]
) -> tuple[Cells, NDArray[np.intp]]:
    """Sort groups of coordinates into cells by their holders.

    Args:
        clients: Client ids, ascending.
        holder_sets: Holders of each group, shape (words, n); bit i stands for the i-th of ``clients``.
        sizes: Number of coordinates in each group, shape (n,).

    Returns:
        The cells, and the number of each group's cell, shape (n,).
    """
    numbers = np.zeros(holder_sets.shape[1], dtype=np.intp)
    for word in holder_sets:  # cells are refined by one word after another
        distinct, found = np.unique(word, return_inverse=True)
        numbers = np.unique(numbers * len(distinct) + found, return_inverse=True)[1]
    count = int(numbers.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.intp)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the first group of each cell, as the last write stays
    bits = np.arange(len(clients), dtype=np.uint64)
    members = holder_sets[bits // 64][:, first] >> (bits % 64)[:, None] & np.uint64(1)
    cells = Cells(
        tuple(clients), np.bincount(numbers, weights=sizes, minlength=count).astype(np.int64), members.T.astype(bool)
    )
    return cells, numbers
