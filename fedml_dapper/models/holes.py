"""Memory that holes in the heap take while a network runs forward.

Layers compute on the way to what autograd saves, and free it: each freed block leaves a hole between saved ones. glibc
aligns torch's blocks by asking for more and giving both ends back, and small objects settle there. So a hole is too
small for a block of the size that it had, and neighbouring holes do not become one: only smaller blocks fit in.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from fedml_dapper.models.dispatch_mode import DispatchMode
from fedml_dapper.process.freed_memory import LARGEST_KEPT_BYTES

_ENDS = 96
"""Bytes beyond its size that glibc wants to align a block to 64: the alignment and its smallest chunk."""


@dataclass(frozen=True)
class Change:
    """A block of the heap that is taken, or given back."""

    block: int
    """Number of the block."""
    taken: int
    """Its bytes; 0 where it is given back."""


@dataclass(frozen=True)
class Holes:
    """What a forward pass takes and gives back, at any batch size."""

    changes: tuple[Change, ...] = ()
    """Changes with one batch size."""
    growth: tuple[float, ...] = ()
    """Bytes per sample by which each of them grows."""
    samples: int = 0
    """Batch size that the changes are of."""

    @classmethod
    def of(cls, small: Sequence[Change], large: Sequence[Change], samples: tuple[int, int]) -> Holes:
        """Return the holes of a network that ran forward on two batches, of ``samples`` inputs.

        None are known of a network that does other things for other batch sizes.
        """
        if [(each.block, each.taken > 0) for each in small] != [(each.block, each.taken > 0) for each in large]:
            return cls()
        steps = samples[1] - samples[0]
        growth = ((after.taken - before.taken) / steps for before, after in zip(small, large, strict=True))
        return cls(tuple(small), tuple(growth), samples[0])

    def lost(self, batch_size: int) -> int:
        """Return the bytes of holes after a forward pass of a batch."""
        more = batch_size - self.samples
        return lost_bytes(
            Change(each.block, each.taken and round(each.taken + more * growth))
            for each, growth in zip(self.changes, self.growth, strict=True)
        )


def lost_bytes(changes: Iterable[Change]) -> int:
    """Return by how many bytes a heap is larger than all that it held at one time.

    A block goes into the smallest hole that is large enough, as glibc puts it, or at the end. Blocks above
    ``LARGEST_KEPT_BYTES`` are no part of the heap.
    """
    blocks = dict[int, int]()
    holes = list[int]()
    heap = 0
    held = 0
    most = 0
    for change in changes:
        if change.taken > LARGEST_KEPT_BYTES:
            continue
        if change.taken:
            blocks[change.block] = change.taken
            place = bisect_left(holes, change.taken + _ENDS)
            if place < len(holes):
                insort(holes, holes.pop(place) - change.taken)
            else:
                heap += change.taken
            held += change.taken
            most = max(most, held)
        elif change.block in blocks:
            held -= blocks[change.block]
            insort(holes, blocks.pop(change.block))
    return heap - most


class HeapChanges(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode that notes which blocks torch's operations take and give back.

    ``own`` are addresses of tensors that were there before. What one operation takes and gives back within itself is
    not seen.
    """

    def __init__(self, own: Iterable[int]) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self._known = set(own)
        self._watched = dict[int, weakref.ref[object]]()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                self._note(each)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not storage.nbytes() or address in self._known:
            return
        block = len(self.changes)
        self.changes.append(Change(block, storage.nbytes()))
        self._known.add(address)

        def given_back(_gone: object) -> None:
            self._known.discard(address)
            self._watched.pop(block)
            self.changes.append(Change(block, 0))

        self._watched[block] = weakref.ref(storage, given_back)

    def __exit__(self, *error: Any) -> None:
        self._watched.clear()  # what is given back later is no part of it
        super().__exit__(*error)  # type: ignore[no-untyped-call]
