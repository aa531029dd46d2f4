"""Uploads kept until the round closes, and where their entries lie in the dense model."""

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
class WaitingUpload:
    """One client's upload, kept until the round closes."""

    weights: Tensors
    """Tensors cut to ``kept``, except for those named in ``unsliced``."""
    kept: KeptIndices
    unsliced: Collection[str]
    weight: float
    """What the client counts for in a mean."""

    def cuts(self, name: str, layout: ChannelLayout) -> Mapping[int, Tensor]:
        """Return axis -> kept entries of the dense tensor ``name``, for the axes that are cut."""
        return {} if name in self.unsliced else self.kept.of(layout.tensors[name])


def spread(values: Tensor, cuts: Mapping[int, Tensor], like: Tensor, elsewhere: float) -> Tensor:
    """Scatter ``values`` to their places in a tensor of the shape of ``like``, with ``elsewhere`` at all others."""
    values = values.detach().to(like)
    for dim, indices in cuts.items():
        shape = list(values.shape)
        shape[dim] = like.shape[dim]
        values = values.new_full(shape, elsewhere).index_copy_(dim, indices.to(like.device), values)
    return values


def mask(cuts: Mapping[int, Tensor], like: Tensor) -> Tensor:
    """Return a boolean mask of the held coordinates, of size 1 along axes that are not cut."""
    axes = [_along(dim, indices, like) for dim, indices in cuts.items()]
    start = torch.ones([1] * like.dim(), dtype=torch.bool, device=like.device)
    return reduce(torch.logical_and, axes, start)


def _along(dim: int, indices: Tensor, like: Tensor) -> Tensor:
    kept = torch.zeros(like.shape[dim], dtype=torch.bool, device=like.device)
    kept[indices.to(like.device)] = True
    return kept.view([-1 if axis == dim else 1 for axis in range(like.dim())])
