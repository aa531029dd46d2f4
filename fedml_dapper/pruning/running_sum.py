"""Weighted sum over clients of one tensor, of which each client kept some entries.

Four things make it fast on a CPU. Clients that are added together are added block by block, so that the sum passes
through memory once for all of them. Numbers are widened to float64 in memory that stays in the processor's cache.
Blocks are independent pieces of work, for several threads. And the weight that held a coordinate is counted per
channel, not per coordinate; sums lie in memory as uploads do, whichever axis was cut, so both are read in order.

Every coordinate's summands are added in the order in which they are given: blocks and threads change no bit.
"""

from __future__ import annotations

import mmap
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.models.in_bulk import copy_each
from fedml_dapper.pruning.layout import TensorSpec
from fedml_dapper.pruning.side_by_side import Piece
from fedml_dapper.randomness.chacha20 import Noise

Recovery = Literal["global", "zero", "holders"]

_BLOCK_ENTRIES = 2**18
"""Entries in a block on a CPU (2 MiB in float64). Smaller blocks are more calls, larger ones fall out of the cache; a
GPU takes a tensor at once."""

_HUGE_PAGE = 2**21
"""Bytes of a huge page; sums of at least this size ask the kernel for such pages."""


def shapes_of_sums(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a tensor's sum and of the weights that held its channels, which broadcast to it."""
    shape = spec.shape or (1,)
    cut = {axis.dim for axis in spec.axes}
    return shape, tuple(size if dim in cut else 1 for dim, size in enumerate(shape))


@dataclass(frozen=True, eq=False)
class Sent:
    """What one client sent of a tensor."""

    values: Tensor
    kept: Mapping[int, Tensor]
    """Axis -> kept entries, ascending; an axis that is not named is whole."""
    weight: float


class RunningSum:
    """Running sums of n_i M_i w_i and of n_i M_i over clients of weights n_i and kept coordinates M_i, in float64.

    Additions and means are done at once (:meth:`add`, :meth:`mean`), or returned as pieces of work (:meth:`adding`,
    :meth:`averaging`), all of which have to be done, in any order or side by side, before the sum is read.
    """

    def __init__(self, spec: TensorSpec, device: torch.device) -> None:
        self._shape, channels = shapes_of_sums(spec)
        self._device = device
        self._sum: Tensor | None = None
        """The sum; None while it is zero."""
        self._held_whole = 0.0
        """Weight of the clients that kept everything; ``_held`` counts the others, by entry of the cut axes."""
        self._held = torch.zeros(channels, dtype=torch.float64, device=device)

    def add(self, *sent: Sent) -> None:
        """Add what clients sent, in this order."""
        for piece in self.adding(sent):
            piece()

    def adding(self, sent: Sequence[Sent]) -> Iterator[Piece]:
        """Return the pieces of work of :meth:`add`."""
        summands = [self._counted(one) for one in sent]
        sums = self._allocated()
        for rows in self._blocks(max((one.entries for one in summands), default=0)):
            yield partial(_add, sums[rows], rows, summands)

    @property
    def so_far(self) -> tuple[Tensor, Tensor]:
        """The sum, and the weight that held each channel, which broadcasts to it; float64, not copied.

        The sum has the tensor's shape; that of a scalar has one entry.
        """
        return self._allocated(), self._held + self._held_whole

    def merge(self, sums: Tensor, held: Tensor) -> None:
        """Add the sums and weights that another sum of the same tensor has as :attr:`so_far`."""
        self._allocated().add_(sums.to(self._device))
        self._held.add_(held.to(self._device))

    def disturb(self, noise: Noise, std: float) -> None:
        """Add normal noise of standard deviation ``std`` to the sum, where some weight holds it."""
        held = self._held + self._held_whole > 0
        self._allocated().addcmul_(noise.normal(self._shape, self._device), held.double(), value=std)

    def mean(self, previous: Tensor, total: float, recovery: Recovery) -> Tensor:
        """Return the mean over clients of weight ``total``, in the shape and dtype of ``previous``. The sum is used up.

        ``previous`` fills coordinates that were cut, as ``recovery`` says.
        """
        result, pieces = self.averaging((), previous, total, recovery)
        for piece in pieces:
            piece()
        return result

    def averaging(
        self, sent: Sequence[Sent], previous: Tensor, total: float, recovery: Recovery
    ) -> tuple[Tensor, Iterator[Piece]]:
        """Return the tensor of :meth:`mean`, with ``sent`` added just before, and the pieces of work that fill it."""
        result = torch.empty_like(previous, memory_format=torch.contiguous_format)
        return result, self._averaging(sent, previous, total, recovery, result)

    def _averaging(
        self, sent: Sequence[Sent], previous: Tensor, total: float, recovery: Recovery, result: Tensor
    ) -> Iterator[Piece]:
        summands = [self._counted(one) for one in sent]
        sums = self._sum
        self._sum = None
        held = (self._held + self._held_whole).expand(self._shape[0], *self._held.shape[1:])
        before = previous.view(self._shape)
        after = result.view(self._shape)
        for rows in self._blocks(prod(self._shape)):
            block = None if sums is None else sums[rows]
            yield partial(_average, block, rows, summands, held[rows], before[rows], total, recovery, after[rows])

    def _allocated(self) -> Tensor:
        if self._sum is None:
            self._sum = _zeros(self._shape, self._device)
        return self._sum

    def _counted(self, sent: Sent) -> _Summand:
        """Count the weight of what was sent as held, and return it as a summand."""
        kept = {dim: entries.to(self._device) for dim, entries in sent.kept.items()}
        if kept:
            held = _positions(self._held.shape, kept, self._device)
            self._held.view(-1).index_add_(0, held, self._held.new_full(held.shape, sent.weight))
        else:
            self._held_whole += sent.weight
        return _Summand(sent.values.detach().to(self._device), kept, sent.weight, self._shape)

    def _blocks(self, entries: int) -> Iterator[slice]:
        """Slices of as many rows as fit one block, given the entries in all rows."""
        rows = self._shape[0]
        step = max(1, rows)
        if entries > _BLOCK_ENTRIES and self._device.type == "cpu":
            step = max(1, _BLOCK_ENTRIES * rows // entries)
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))


def add_to_each(sent: Sequence[tuple[RunningSum, Sent]]) -> None:
    """Add to each sum what one client sent of it; what is whole in few calls, which cost more than small tensors do."""
    whole = [(total, each) for total, each in sent if not each.kept]
    for total, each in sent:
        if each.kept:
            total.add(each)
    if not whole:
        return
    sums = [total._allocated() for total, _ in whole]
    wide = [torch.empty_like(each) for each in sums]
    copy_each([each.values.detach().view(total.shape) for (_, each), total in zip(whole, sums, strict=True)], wide)
    torch._foreach_add_(sums, wide, alpha=whole[0][1].weight)
    for total, each in whole:
        total._held_whole += each.weight


class _Summand:
    """One client's part of a tensor, and where in the sum it belongs."""

    def __init__(self, values: Tensor, kept: Mapping[int, Tensor], weight: float, shape: Sequence[int]) -> None:
        self._values = values if kept else values.view(shape)
        self.entries = values.numel()
        self._weight = weight
        self._rows = kept.get(0)
        self._row_numbers: list[int] | None = None
        """The numbers in ``_rows``; None where all rows are one block, so that nobody asks for them."""
        if self._rows is not None and values.device.type == "cpu":
            self._row_numbers = self._rows.tolist()
        within = {dim: entries for dim, entries in kept.items() if dim > 0}
        self._columns = _positions((1, *shape[1:]), within, values.device) if within else None

    def add_to(self, sums: Tensor, rows: slice, wide: Tensor) -> None:
        """Add the part in these ``rows`` to ``sums``; ``wide`` is scratch memory for as many numbers."""
        first = rows.start
        last = rows.stop
        if self._rows is not None:
            first = 0 if self._row_numbers is None else bisect_left(self._row_numbers, first)
            last = len(self._rows) if self._row_numbers is None else bisect_left(self._row_numbers, last)
        values = self._values if last - first == self._values.shape[0] else self._values[first:last]
        values = wide[: values.numel()].view(values.shape).copy_(values)
        if self._rows is None and self._columns is None:
            sums.add_(values, alpha=self._weight)
            return
        values.mul_(self._weight)  # as its factor alpha, index_add_ takes ten times as long
        if self._rows is None:
            assert self._columns is not None
            sums.flatten(1).index_add_(1, self._columns, values.flatten(1))
            return
        places = self._rows[first:last] - rows.start if rows.start else self._rows[first:last]
        if self._columns is None:
            sums.index_add_(0, places, values)
        else:
            found = sums[places]
            found.flatten(1).index_add_(1, self._columns, values.flatten(1))
            sums[places] = found


class _Scratch(threading.local):
    """A thread's scratch memory in float64, kept between blocks: the C library would hand it back each time."""

    def __init__(self) -> None:
        self._wide = torch.empty(0, dtype=torch.float64)

    def of(self, entries: int, device: torch.device) -> Tensor:
        """Return memory for so many numbers, with any contents."""
        if device.type != "cpu":
            return torch.empty(entries, dtype=torch.float64, device=device)
        if len(self._wide) < entries:
            self._wide = torch.empty(entries, dtype=torch.float64)
        return self._wide


_scratch = _Scratch()


def _add(sums: Tensor, rows: slice, summands: Sequence[_Summand]) -> None:
    """Add the summands' part of ``rows`` to ``sums``, which are these rows of a sum."""
    largest = max((summand.entries for summand in summands), default=0)
    wide = _scratch.of(min(largest, sums.numel()), sums.device)
    for summand in summands:
        summand.add_to(sums, rows, wide)


def _average(
    sums: Tensor | None,
    rows: slice,
    summands: Sequence[_Summand],
    held: Tensor,
    before: Tensor,
    total: float,
    recovery: Recovery,
    after: Tensor,
) -> None:
    """Add the summands as :func:`_add` does, and write the mean of these rows to ``after``.

    ``sums`` is None while it is zero.
    """
    if sums is None:
        sums = torch.zeros(before.shape, dtype=torch.float64, device=before.device)
    _add(sums, rows, summands)
    match recovery:
        case "zero":
            mean = sums.div_(total)
        case "global":
            mean = sums.addcmul_(before.double(), total - held).div_(total)
        case "holders":
            mean = torch.where(held > 0, sums / held, before.double())
    after.copy_(mean)


def _zeros(shape: Sequence[int], device: torch.device) -> Tensor:
    """Zeros in float64; large ones on a CPU in memory pages of their own.

    Such pages go back to the system with the tensor, where the C library would keep them. Huge pages, where the kernel
    has them, are cleared and addressed faster than as many small ones.
    """
    size = 8 * prod(shape)
    if sys.platform != "linux" or device.type != "cpu" or size < _HUGE_PAGE:
        return torch.zeros(shape, dtype=torch.float64, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones are never huge
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float64).view(shape)


def _positions(shape: Sequence[int], kept: Mapping[int, Tensor], device: torch.device) -> Tensor:
    """Positions of the ``kept`` entries in a flat view of a tensor of that ``shape``."""
    if len(kept) == 1:
        [(dim, entries)] = kept.items()
        if shape[dim] == prod(shape):
            return entries
    places = torch.arange(prod(shape), device=device).view(tuple(shape))
    for dim, entries in kept.items():
        places = places.index_select(dim, entries)
    return places.flatten()
