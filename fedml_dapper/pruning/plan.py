"""Which part of the global model a client holds: channels chosen by l1 importance (DapperFL, section 3.2), at random
or as a window, and tensors left out whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.profiling import part
from fedml_dapper.pruning.layout import Axis, ChannelLayout, Widths

Tensors = Mapping[str, Tensor]
"""State-dict entries by name."""


@dataclass(frozen=True, eq=False)
class PruningPlan:
    """Kept channel indices per cut group: int64, sorted, unique, on the CPU. Groups not named are whole."""

    kept: Mapping[str, Tensor]
    omitted: frozenset[str] = frozenset()
    """Tensors left out whole: those of skipped blocks, or what is a client's own and never travels."""

    @property
    def widths(self) -> Widths:
        return {name: len(indices) for name, indices in self.kept.items()}

    def equals(self, other: PruningPlan) -> bool:
        """Whether both keep and omit the same."""
        same_names = self.omitted == other.omitted and self.kept.keys() == other.kept.keys()
        return same_names and all(torch.equal(kept, other.kept[name]) for name, kept in self.kept.items())

    def check(self, layout: ChannelLayout) -> None:
        """Raises :class:`ProtocolError` unless every name exists and indices are sorted, unique and in range."""
        for name in sorted(self.omitted - layout.tensors.keys()):
            raise ProtocolError(f"pruning plan leaves out tensor `{name}`, which the model does not have")
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


@part("pruning")
def plan_by_importance(layout: ChannelLayout, weights: Tensors, widths: Widths) -> PruningPlan:
    """Keep the channels that are most important in ``weights``."""
    return PruningPlan({name: keep_largest(importance(layout, name, weights), width) for name, width in widths.items()})


def plan_at_random(layout: ChannelLayout, widths: Widths, generator: np.random.Generator) -> PruningPlan:
    """Keep channels drawn uniformly without replacement, group by group in the layout's order."""
    kept = {}
    for name, group in layout.groups.items():
        if name in widths:
            drawn = np.sort(generator.choice(group.channels, widths[name], replace=False))
            kept[name] = torch.from_numpy(drawn.astype(np.int64))
    return PruningPlan(kept)


def plan_window(layout: ChannelLayout, widths: Widths, start: int = 0) -> PruningPlan:
    """Keep consecutive channels from ``start`` on, around the end if need be; from 0 smaller plans are nested."""
    kept = {}
    for name, width in widths.items():
        channels = layout.groups[name].channels
        kept[name] = ((torch.arange(width) + start) % channels).sort().values
    return PruningPlan(kept)


def importance(layout: ChannelLayout, group: str, weights: Tensors) -> Tensor:
    """Per channel, the sum of absolute weights over all filters that produce it: shape (channels,), float64, CPU.

    Of a standardised filter ``layout.importance`` says what counts: its raw weights, its gain, or their product.
    """
    values = {}
    for producer in layout.groups[group].producers:
        values[producer] = weights[producer].detach().abs().double()
        gain = weights.get(gain_of(producer))
        if gain is not None and layout.importance != "filters":
            sizes = gain.detach().abs().double()
            if layout.importance == "gains":
                values[producer] = sizes
            else:
                values[producer] *= sizes.view(-1, *[1] * (values[producer].dim() - 1))
    return channel_sums(layout, group, values).cpu()


def channel_sums(layout: ChannelLayout, group: str, values: Tensors) -> Tensor:
    """Per channel, the sum over all of ``values`` that is the channel's: shape (channels,), in their dtype and on their
    device. Names and shapes are those of tensors that hold the group."""
    channels = torch.arange(layout.groups[group].channels)
    sums = []
    for name, tensor in values.items():
        axis = axis_of(layout, group, name)
        along = tensor.movedim(axis.dim, 0).reshape(tensor.shape[axis.dim], -1).sum(dim=1)
        sums.append(along[axis.of(channels).to(along.device)].sum(dim=1))
    return sum(sums[1:], sums[0])


def axis_of(layout: ChannelLayout, group: str, name: str) -> Axis:
    """Where the tensor ``name`` holds the channels of ``group``."""
    return next(axis for axis in layout.tensors[name].axes if axis.group == group)


def gain_of(filters: str) -> str:
    """Name of the gains of standardised ``filters``, where there are any."""
    return f"{filters.removesuffix('weight')}gain"


def ranked(scores: Tensor) -> Tensor:
    """Indices of ``scores``, the largest first; of equals the lower index."""
    return torch.sort(scores, descending=True, stable=True).indices


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """Sorted indices of the ``count`` largest ``scores``; of equals the lower index is kept."""
    return ranked(scores)[:count].sort().values
