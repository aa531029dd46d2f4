"""The weighted sum over clients of one tensor, of which each kept some entries; in one pass over what was sent.

Three things make it fast on a CPU. Numbers are widened to float64 a block at a time, in scratch memory that stays in
the processor's cache. The axis that clients cut stands first in memory, so that what is added to is contiguous. And
how much weight held a coordinate is counted per channel, not per coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.pruning.layout import TensorSpec

Recovery = Literal["global", "zero", "holders"]

_BLOCK_ENTRIES = 2**18
"""Entries widened at a time on a CPU, 2 MiB: fewer are more calls, more fall out of the cache; a GPU takes all."""


class RunningSum:
    """With weights n_i and kept coordinates M_i: sum_i n_i M_i w_i and sum_i n_i M_i, in float64."""

    def __init__(self, spec: TensorSpec, device: torch.device) -> None:
        self._cut = tuple(axis.dim for axis in spec.axes)
        shape = self._arranged(torch.empty(spec.shape, device="meta")).shape
        self._sum = torch.zeros(shape, dtype=torch.float64, device=device)
        self._held_whole = 0.0
        """Weight of those that kept everything; beyond that, by kept entry of the cut axes:"""
        self._held = torch.zeros(shape[: len(self._cut)], dtype=torch.float64, device=device)

    def add(self, values: Tensor, kept: Mapping[int, Tensor], weight: float) -> None:
        """Add ``weight`` times ``values``, which along axis ``dim`` holds the entries ``kept[dim]`` alone."""
        values = values.detach().to(self._sum.device)
        if not kept:
            self._held_whole += weight
            for block, wide in _widened(self._arranged(values)):
                self._sum[block].add_(wide, alpha=weight)
            return
        device = self._sum.device
        rows = kept.get(self._cut[0], torch.arange(len(self._sum))).to(device)
        held = torch.full((1,), weight, dtype=torch.float64, device=device)
        for dim, size in zip(self._cut[1:], self._held.shape[1:], strict=True):
            if dim in kept:  # cut along a second axis: filled up with zeros there
                columns, shape = kept[dim].to(device), list(values.shape)
                shape[dim] = size
                values = values.new_zeros(shape).index_copy_(dim, columns, values)
                held = held.new_zeros(size).index_fill_(0, columns, weight)
        self._held.index_add_(0, rows, held.expand(len(rows), *self._held.shape[1:]))
        for block, wide in _widened(self._arranged(values)):
            self._sum.index_add_(0, rows[block], wide, alpha=weight)

    def mean(self, previous: Tensor, total: float, recovery: Recovery) -> Tensor:
        """The mean over clients of weight ``total``, in shape and dtype of ``previous``, which fills what was cut."""
        result = torch.empty_like(previous, memory_format=torch.contiguous_format)  # or a flat view would be a copy
        arranged_result, arranged_previous = self._arranged(result), self._arranged(previous)
        held = (self._held + self._held_whole).view([*self._held.shape, *[1] * (self._sum.dim() - self._held.dim())])
        for block, wide in _widened(arranged_previous):
            entries, here = self._sum[block], held[block] if self._cut else held
            match recovery:
                case "zero":
                    torch.div(entries, total, out=wide)
                case "global":
                    wide.mul_(total - here).add_(entries).div_(total)
                case "holders":
                    wide.copy_(torch.where(here > 0, entries / here, wide))
            arranged_result[block] = wide
        return result

    def _arranged(self, tensor: Tensor) -> Tensor:
        """A view with the cut axes first; flat where there are none."""
        return tensor.movedim(self._cut, tuple(range(len(self._cut)))) if self._cut else tensor.reshape(-1)


def _widened(tensor: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """``tensor`` in float64, so many entries of its first axis at a time as fit one block; overwritten by the next."""
    rows = max(1, len(tensor))
    if tensor.numel() > _BLOCK_ENTRIES and tensor.device.type == "cpu":
        rows = max(1, _BLOCK_ENTRIES * len(tensor) // tensor.numel())
    scratch = torch.empty((rows, *tensor.shape[1:]), dtype=torch.float64, device=tensor.device)
    for start in range(0, len(tensor), rows):
        block = slice(start, min(start + rows, len(tensor)))
        yield block, scratch[: block.stop - start].copy_(tensor[block])
