"""Pairwise agreement of slim models' updates, over the coordinates that both clients hold.

Clients of different capability hold different channels, so two updates can only be compared where they overlap. Over
these coordinates S of the clients i and j, with updates d = w - W, a pair has a cosine <d_i, d_j>_S / (|d_i|_S |d_j|_S)
and a ratio of lengths |d_i|_S / |d_j|_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import Tensors
from fedml_dapper.pruning.waiting_uploads import WaitingUpload, mask, spread

_BLOCK_ENTRIES = 2**20
"""Coordinates widened to float64 at a time, for all clients: bounds the memory of a comparison."""


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Inner products and squared norms of n clients' updates, pair by pair, in float64."""

    products: Tensor
    """Shape (n, n): <d_i, d_j> over the coordinates that both clients hold."""
    squares: Tensor
    """Shape (n, n): ||d_i||^2 over the coordinates that client j holds too."""

    def cosines(self) -> Tensor:
        """Return the (n, n) cosines of all pairs; 0 for a pair that shares no coordinate that both changed."""
        lengths = (self.squares * self.squares.T).sqrt()
        return torch.where(lengths > 0, self.products / lengths, 0)

    def ratios(self) -> Tensor:
        """Return the (n, n) ratios |d_i| / |d_j| of all pairs; NaN where j changed nothing that both hold."""
        return torch.where(self.squares.T > 0, self.squares / self.squares.T, torch.nan).sqrt()


def overlaps(
    uploads: Sequence[WaitingUpload], previous: Tensors, layout: ChannelLayout, names: Iterable[str]
) -> Overlaps:
    """Compare the updates of all pairs of ``uploads``, relative to ``previous``, over the tensors of ``names``.

    Tensors are treated one after another, so memory holds one copy per client of the largest tensor alone.
    """
    shape = (len(uploads), len(uploads))
    products = torch.zeros(shape, dtype=torch.float64)
    squares = torch.zeros(shape, dtype=torch.float64)
    for name in names:
        before = previous[name]
        changes = before.new_zeros(len(uploads), before.numel())
        held = torch.zeros_like(changes, dtype=torch.bool)
        for row, upload in enumerate(uploads):
            if name in upload.weights:
                cuts = upload.cuts(name, layout)
                held[row] = mask(cuts, before).expand(before.shape).flatten()
                changes[row] = (spread(upload.weights[name], cuts, before, 0) - before).flatten() * held[row]
        for start in range(0, before.numel(), _BLOCK_ENTRIES):
            block = changes[:, start : start + _BLOCK_ENTRIES].double()
            products += (block @ block.T).cpu()
            squares += (block.square() @ held[:, start : start + _BLOCK_ENTRIES].double().T).cpu()
    return Overlaps(products, squares)
