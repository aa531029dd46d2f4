"""Uploads that wait for the round to close, and where in the dense model their entries lie."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import Tensors
from fedml_dapper.pruning.slim import KeptIndices


@dataclass(frozen=True, eq=False)
class HeldUpload:
    """One client's ``weights``, cut to what is ``kept`` but for those named ``unsliced``, and what it counts for."""

    weights: Tensors
    kept: KeptIndices
    unsliced: Collection[str]
    weight: float

    def cuts(self, name: str, layout: ChannelLayout) -> Mapping[int, Tensor]:
        """Axis -> entries of the whole tensor ``name`` that it holds; nothing of axes that are not cut."""
        return {} if name in self.unsliced else self.kept.of(layout.tensors[name])


def spread(values: Tensor, cuts: Mapping[int, Tensor], like: Tensor, elsewhere: float) -> Tensor:
    """``values`` at their places in a tensor of the shape of ``like``, which is ``elsewhere`` at all others."""
    values = values.detach().to(like)
    for dim, indices in cuts.items():
        shape = list(values.shape)
        shape[dim] = like.shape[dim]
        values = values.new_full(shape, elsewhere).index_copy_(dim, indices.to(like.device), values)
    return values


def mask(cuts: Mapping[int, Tensor], like: Tensor) -> Tensor:
    """Which coordinates are held: bool, of the full size along the axes that are cut, 1 along the others."""
    axes = [_along(dim, indices, like) for dim, indices in cuts.items()]
    start = torch.ones([1] * like.dim(), dtype=torch.bool, device=like.device)
    return reduce(torch.logical_and, axes, start)


def _along(dim: int, indices: Tensor, like: Tensor) -> Tensor:
    kept = torch.zeros(like.shape[dim], dtype=torch.bool, device=like.device)
    kept[indices.to(like.device)] = True
    return kept.view([-1 if axis == dim else 1 for axis in range(like.dim())])
