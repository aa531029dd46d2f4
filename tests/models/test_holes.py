"""Holes that a forward pass leaves in the heap, by hand and in a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedml_dapper.models.holes import Change, HeapChanges, Holes, lost_bytes
from fedml_dapper.process.freed_memory import LARGEST_KEPT_BYTES


def changes(*taken: tuple[int, int]) -> list[Change]:
    return [Change(block, size) for block, size in taken]


def test_a_hole_is_too_small_for_a_block_of_its_size_and_takes_smaller_ones() -> None:
    freed = changes((0, 1000), (1, 1000), (2, 1000), (1, 0))
    assert lost_bytes(freed) == 0
    assert lost_bytes([*freed, *changes((3, 1000))]) == 1000
    assert lost_bytes([*freed, *changes((3, 500))]) == 0  # in the hole
    assert lost_bytes([*freed, *changes((3, 500), (4, 500))]) == 500  # what is left of it does not do
    assert lost_bytes([*freed, *changes((3, 1000), (2, 0), (4, 1900))]) == 2000  # neighbours are two holes


def test_large_blocks_are_no_part_of_the_heap() -> None:
    large = LARGEST_KEPT_BYTES + 1
    assert lost_bytes(changes((0, 10), (1, large), (1, 0), (2, large))) == 0


class Passing(nn.Module):
    """A sum whose summands autograd does not keep, before a square, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(100))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = (self.weight + x + x).square()
        return x


def test_what_a_network_takes_and_gives_back_is_seen_and_grows_with_the_batch() -> None:
    seen = list[tuple[Change, ...]]()
    for samples in (2, 3):
        network = Passing()
        inputs = torch.ones(samples, 100)
        with HeapChanges([network.weight.data_ptr(), inputs.data_ptr()]) as heap:
            outputs = network(inputs)
        del outputs
        seen.append(tuple(heap.changes))
    taken = [change.block for change in seen[0] if change.taken]
    given_back = [change.block for change in seen[0] if not change.taken]
    assert len(taken) == 9
    assert all(change.taken in (0, 800) for change in seen[0])
    assert [taken.index(block) for block in given_back] == [0, 3, 2, 6, 5]  # sums, and squares behind the next ones
    # nine blocks of one size, of which five are held at most, and none fits into the hole of another
    assert Holes.of(seen[0], seen[1], (2, 3)).lost(10) == 4 * 4000


def test_none_are_known_where_the_batch_decides_what_is_done() -> None:
    assert Holes.of(changes((0, 10)), changes((0, 10), (1, 10)), (2, 3)).lost(5) == 0
