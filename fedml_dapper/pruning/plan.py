"""Plans of which part of the global model a client holds.

Channels are chosen by l1 importance (DapperFL, section 3.2), at random, or as a window. Tensors may also be left out
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.process.profiling import part
from fedml_dapper.process.transfers import sent_to
from fedml_dapper.pruning.layout import Axis, ChannelLayout, Widths

Tensors = Mapping[str, Tensor]
"""State-dict entries by name."""


@dataclass(frozen=True, eq=False)
class PruningPlan:
    """The channels and tensors of the dense model that a client holds."""

    kept: Mapping[str, Tensor]
    omitted: frozenset[str] = frozenset()
    """Tensors left out whole: those of skipped blocks, and personal ones, which never travel."""

    @property
    def widths(self) -> Widths:
        return {name: len(indices) for name, indices in self.kept.items()}

    def equals(self, other: PruningPlan) -> bool:
        """Whether both plans keep the same channels and omit the same tensors."""
        same_names = self.omitted == other.omitted and self.kept.keys() == other.kept.keys()
        return same_names and all(torch.equal(kept, other.kept[name]) for name, kept in self.kept.items())

    def check(self, layout: ChannelLayout) -> None:
        """Check that every name exists, and that indices are sorted, unique and in range.

        Raises:
            ProtocolError: One does not, or is not.
        """
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
"""The plan that keeps every channel."""


@part("pruning")
def plan_by_importance(layout: ChannelLayout, weights: Tensors, widths: Widths) -> PruningPlan:
    """Keep the channels of largest :func:`importance` in ``weights``."""
    scores = [_importance(layout, name, weights) for name in widths]
    sizes = [len(each) for each in scores]
    fetched = torch.split(torch.cat(scores).cpu(), sizes) if scores else ()  # a GPU is waited for once
    named = zip(widths.items(), fetched, strict=True)
    return PruningPlan({name: keep_largest(each, width) for (name, width), each in named})


def plan_at_random(layout: ChannelLayout, widths: Widths, generator: np.random.Generator) -> PruningPlan:
    """Keep channels drawn uniformly without replacement, group by group in the layout's order."""
    kept = {}
    for name, group in layout.groups.items():
        if name in widths:
            drawn = np.sort(generator.choice(group.channels, widths[name], replace=False))
            kept[name] = torch.from_numpy(drawn.astype(np.int64))
    return PruningPlan(kept)


def plan_window(layout: ChannelLayout, widths: Widths, start: int = 0) -> PruningPlan:
    """Keep consecutive channels from ``start`` on, wrapping around at the end. From 0, smaller plans are nested."""
    kept = {}
    for name, width in widths.items():
        channels = layout.groups[name].channels
        kept[name] = ((torch.arange(width) + start) % channels).sort().values
    return PruningPlan(kept)


def importance(layout: ChannelLayout, group: str, weights: Tensors) -> Tensor:
    """Return each channel's sum of absolute weights over all filters that produce it: shape (channels,), float64, CPU.

    For standardised filters ``layout.importance`` says what is summed: raw weights, gains, or their product. Of an
    adapter's rank component it is the Frobenius norm of its part in B A.
    """
    return _importance(layout, group, weights).cpu()


def _importance(layout: ChannelLayout, group: str, weights: Tensors) -> Tensor:
    partner = layout.groups[group].partner
    if partner is not None:
        [producer] = layout.groups[group].producers
        squares = ({name: weights[name].detach().double().square()} for name in (producer, partner))
        a, b = (channel_sums(layout, group, each).sqrt() for each in squares)
        return a * b
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
    return channel_sums(layout, group, values)


def channel_sums(layout: ChannelLayout, group: str, values: Tensors) -> Tensor:
    """Return each channel's sum over the entries of ``values`` that belong to it, shape (channels,).

    ``values`` have the names and shapes of dense tensors that hold the group. Sums have their dtype and device.
    """
    channels = torch.arange(layout.groups[group].channels)
    sums = []
    for name, tensor in values.items():
        axis = axis_of(layout, group, name)
        along = tensor.movedim(axis.dim, 0).reshape(tensor.shape[axis.dim], -1).sum(dim=1)
        sums.append(along[sent_to(axis.of(channels), along.device)].sum(dim=1))
    return sum(sums[1:], sums[0])


def axis_of(layout: ChannelLayout, group: str, name: str) -> Axis:
    """Return the axis of the tensor ``name`` that holds the channels of ``group``: of a layer that both reads and
    makes them, the axis of what it makes."""
    return next(axis for axis in layout.tensors[name].axes if axis.group == group)


def gain_of(filters: str) -> str:
    """Return the name that the gains of standardised ``filters`` have, if there are any."""
    return f"{filters.removesuffix('weight')}gain"


def ranked(scores: Tensor) -> Tensor:
    """Return the indices of ``scores``, largest first; ties go to the lower index."""
    return torch.sort(scores, descending=True, stable=True).indices


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """Return the sorted indices of the ``count`` largest ``scores``; ties keep the lower index."""
    return ranked(scores)[:count].sort().values
