"""The weighted sum over clients of one tensor, of which each kept some entries; in one pass over what was sent.

Three things make it fast on a CPU. Numbers are widened to float64 a block of rows at a time, in memory that stays in
the processor's cache. Sums lie in memory as uploads do, whichever axis was cut, so both are walked through in order.
And how much weight held a coordinate is counted per channel, not per coordinate.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.noise import Noise
from fedml_dapper.pruning.layout import TensorSpec

Recovery = Literal["global", "zero", "holders"]

_BLOCK_ENTRIES = 2**17
"""Entries widened at a time on a CPU, 1 MiB: fewer are more calls, more fall out of the cache; a GPU takes all."""

_HUGE_PAGE = 2**21
"""Bytes of the pages that large sums ask the kernel for."""


def shapes_of_sums(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a tensor's sum and of the weights that held its channels, which broadcast to it."""
    shape, cut = spec.shape or (1,), {axis.dim for axis in spec.axes}
    return shape, tuple(size if dim in cut else 1 for dim, size in enumerate(shape))


class RunningSum:
    """With weights n_i and kept coordinates M_i: sum_i n_i M_i w_i and sum_i n_i M_i, in float64."""

    def __init__(self, spec: TensorSpec, device: torch.device) -> None:
        shape, channels = shapes_of_sums(spec)
        self._sum = _zeros(shape, device)
        self._held_whole = 0.0
        """Weight of those that kept everything; beyond that, by kept entry of the cut axes:"""
        self._held = torch.zeros(channels, dtype=torch.float64, device=device)

    def add(self, values: Tensor, kept: Mapping[int, Tensor], weight: float) -> None:
        """Add ``weight`` times ``values``, which along axis ``dim`` holds the entries ``kept[dim]`` alone."""
        values = values.detach().to(self._sum.device)
        if not kept:
            self._held_whole += weight
            for sums, sent in _blocks(self._sum, values.view_as(self._sum)):
                sums.add_(sent, alpha=weight)
            return
        kept = {dim: entries.to(self._sum.device) for dim, entries in kept.items()}
        held = _positions(self._held, kept)
        self._held.view(-1).index_add_(0, held, self._held.new_full(held.shape, weight))
        # the weight is multiplied in first: given it as a factor, index_add_ would run in one thread
        if kept.keys() == {0}:
            for rows, sent in _blocks(kept[0], values):
                self._sum.index_add_(0, rows, sent.to(torch.float64, copy=True).mul_(weight))
            return
        columns = _positions(self._sum[:1], {dim: entries for dim, entries in kept.items() if dim > 0})
        if 0 not in kept:
            for sums, sent in _blocks(self._sum, values):
                sums.flatten(1).index_add_(1, columns, sent.to(torch.float64, copy=True).mul_(weight).flatten(1))
            return
        for rows, sent in _blocks(kept[0], values):
            sums = self._sum[rows]
            sums.flatten(1).index_add_(1, columns, sent.to(torch.float64, copy=True).mul_(weight).flatten(1))
            self._sum[rows] = sums

    @property
    def so_far(self) -> tuple[Tensor, Tensor]:
        """The sum, in the tensor's shape (a scalar's: one entry), and the weight that held each channel, in a shape
        that broadcasts to it; both float64, not copied."""
        return self._sum, self._held + self._held_whole

    def merge(self, sums: Tensor, held: Tensor) -> None:
        """Add what another of the same tensor has summed :attr:`so_far`."""
        self._sum.add_(sums.to(self._sum.device))
        self._held.add_(held.to(self._held.device))

    def disturb(self, noise: Noise, std: float) -> None:
        """Add normal numbers of standard deviation ``std`` to the sum, where some weight holds it."""
        held = self._held + self._held_whole > 0
        self._sum.addcmul_(noise.normal(self._sum.shape, self._sum.device), held.double(), value=std)

    def mean(self, previous: Tensor, total: float, recovery: Recovery) -> Tensor:
        """The mean over clients of weight ``total``, in shape and dtype of ``previous``, which fills what was cut.

        The sum is used up.
        """
        result = torch.empty_like(previous, memory_format=torch.contiguous_format)
        held = (self._held + self._held_whole).expand(len(self._sum), *self._held.shape[1:])
        views = (self._sum, held, previous.view_as(self._sum), result.view_as(self._sum))
        for sums, here, before, after in _blocks(*views):
            match recovery:
                case "zero":
                    mean = sums.div_(total)
                case "global":
                    mean = sums.addcmul_(before.double(), total - here).div_(total)
                case "holders":
                    mean = torch.where(here > 0, sums / here, before.double())
            after.copy_(mean)
        return result


def _zeros(shape: Sequence[int], device: torch.device) -> Tensor:
    """Zeros in float64; large ones on a CPU in pages of their own.

    These go back to the system with the tensor, where the C library would keep them; and huge ones, where the kernel
    has them, are cleared and found faster than so many small ones.
    """
    size = 8 * prod(shape)
    if sys.platform != "linux" or device.type != "cpu" or size < _HUGE_PAGE:
        return torch.zeros(shape, dtype=torch.float64, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones are never huge
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float64).view(shape)


def _positions(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """Where in a flat view of ``tensor`` the entries lie that are ``kept``."""
    places = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    for dim, entries in kept.items():
        places = places.index_select(dim, entries)
    return places.flatten()


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """So many of the tensors' rows at a time as fit one block in the last of them."""
    largest = tensors[-1]
    if largest.numel() <= _BLOCK_ENTRIES or largest.device.type != "cpu":
        yield tensors
    else:
        rows = max(1, _BLOCK_ENTRIES * len(largest) // largest.numel())
        for start in range(0, len(largest), rows):
            yield tuple(tensor[start : start + rows] for tensor in tensors)
