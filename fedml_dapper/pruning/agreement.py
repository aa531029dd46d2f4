"""How far the changes of slim models agree, pair by pair, over the coordinates that both hold.

Clients of different capability hold different channels, so two changes can only be compared where they overlap. Over
these coordinates S of the clients i and j, with changes d = w - W, a pair has a cosine <d_i, d_j>_S / (|d_i|_S |d_j|_S)
and a ratio of lengths |d_i|_S / |d_j|_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.pruning.held import HeldUpload, mask, spread
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import Tensors

_BLOCK_ENTRIES = 2**20
"""Coordinates of a tensor that are widened to float64 at a time, for all clients."""


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Of n clients' changes, in float64."""

    products: Tensor
    """(n, n): <d_i, d_j> over what both hold."""
    squares: Tensor
    """(n, n): ||d_i||^2 over what j holds too."""

    def cosines(self) -> Tensor:
        """(n, n): of every pair; 0 where two share nothing that both changed."""
        lengths = (self.squares * self.squares.T).sqrt()
        return torch.where(lengths > 0, self.products / lengths, 0)

    def ratios(self) -> Tensor:
        """(n, n): how many times as long as j's change i's is; NaN where j changed nothing that both hold."""
        return torch.where(self.squares.T > 0, self.squares / self.squares.T, torch.nan).sqrt()


def overlaps(uploads: Sequence[HeldUpload], previous: Tensors, layout: ChannelLayout, names: Iterable[str]) -> Overlaps:
    """Of the tensors of ``names``, which all ``uploads`` changed from ``previous``. Tensors are treated one after
    another, so that it takes a copy per client of the largest one."""
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
