"""Which channels a client keeps, and how they are chosen by l1 importance (DapperFL, section 3.2; METHODS A.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import ChannelGroup, ChannelLayout, Widths

Tensors = Mapping[str, Tensor]
"""State-dict entries by name."""


@dataclass(frozen=True, eq=False)
class PruningPlan:
    """Kept channel indices per cut group: int64, sorted, unique, on the CPU. Groups not named are whole."""

    kept: Mapping[str, Tensor]

    @property
    def widths(self) -> Widths:
        return {name: len(indices) for name, indices in self.kept.items()}

    def check(self, layout: ChannelLayout) -> None:
        """Raises :class:`ProtocolError` unless every group exists and its indices are sorted, unique and in range."""
        for name, indices in self.kept.items():
            if name not in layout.groups:
                raise ProtocolError(f"pruning plan names group `{name}`, which the model does not have")
            channels = layout.groups[name].channels
            if indices.dtype != torch.int64 or indices.dim() != 1 or len(indices) == 0:
                raise ProtocolError(f"pruning plan of `{name}`: expected a non-empty list of int64 channel indices")
            if int(indices[0]) < 0 or int(indices[-1]) >= channels or bool((indices.diff() <= 0).any()):
                raise ProtocolError(f"pruning plan of `{name}`: indices must rise strictly within 0..{channels - 1}")


DENSE = PruningPlan({})
"""The plan that keeps everything."""


def plan_by_importance(layout: ChannelLayout, weights: Tensors, widths: Widths) -> PruningPlan:
    """Keep the channels with the largest l1 norm of the filters that produce them."""
    return PruningPlan(
        {name: keep_largest(l1_importance(layout.groups[name], weights), width) for name, width in widths.items()}
    )


def l1_importance(group: ChannelGroup, weights: Tensors) -> Tensor:
    """Per channel, the sum of absolute weights over all filters that produce it: shape (channels,), float64, CPU."""
    scores = torch.zeros(group.channels, dtype=torch.float64)
    for producer in group.producers:
        filters = weights[producer].detach().abs().double()
        scores += filters.flatten(start_dim=1).sum(dim=1).cpu()
    return scores


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """Sorted indices of the ``count`` largest ``scores``; of equals the lower index is kept."""
    ranking = torch.sort(scores, descending=True, stable=True).indices
    return ranking[:count].sort().values
