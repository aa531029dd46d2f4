from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedml_dapper.pruning import Axis, Recovery, TensorSpec, running_sum
from fedml_dapper.pruning.running_sum import RunningSum, Sent

SHAPES = [(7,), (6, 5), (4, 6, 3, 3), (4, 0), (0, 3), (0,), ()]


@st.composite
def cases(draw: st.DrawFn) -> tuple[TensorSpec, list[tuple[dict[int, Tensor], int]]]:
    shape = draw(st.sampled_from(SHAPES))
    cut = draw(st.sets(st.integers(0, len(shape) - 1), max_size=2)) if shape else set()
    uploads = []
    for _ in range(draw(st.integers(1, 4))):
        kept = {}
        for dim in cut:
            entries = draw(st.sets(st.integers(0, max(shape[dim] - 1, 0)), min_size=1))
            if shape[dim] and draw(st.booleans()):
                kept[dim] = torch.tensor(sorted(entries))
        uploads.append((kept, draw(st.integers(1, 500))))
    return TensorSpec(shape, torch.float32, True, 0, tuple(Axis(dim, f"g{dim}") for dim in sorted(cut))), uploads


@settings(max_examples=150, deadline=None)
@given(case=cases(), recovery=st.sampled_from(["global", "zero", "holders"]), block=st.sampled_from([1, 8, 2**18]))
def test_the_mean_is_that_of_dense_masks_bit_for_bit(
    case: tuple[TensorSpec, list[tuple[dict[int, Tensor], int]]], recovery: Recovery, block: int
) -> None:
    spec, uploads = case
    generator = torch.Generator().manual_seed(1)
    previous = torch.randn(spec.shape, generator=generator)
    sums, held = torch.zeros(spec.shape, dtype=torch.float64), torch.zeros(spec.shape, dtype=torch.float64)
    running = RunningSum(spec, torch.device("cpu"))
    with mock.patch.object(running_sum, "_BLOCK_ENTRIES", block):
        for kept, weight in uploads:
            values, mask = torch.randn(spec.shape, generator=generator), torch.ones(spec.shape, dtype=torch.bool)
            for dim, entries in kept.items():
                values = values.index_select(dim, entries)
                axis = torch.zeros(spec.shape[dim], dtype=torch.bool).index_fill_(0, entries, True)
                mask &= axis.view([-1 if other == dim else 1 for other in range(len(spec.shape))])
            running.add(Sent(values, kept, weight))
            sums[mask] += weight * values.flatten().double()
            held[mask] += weight
        total = sum(weight for _, weight in uploads)
        found = running.mean(previous, total, recovery)
    expected = {
        "zero": sums / total,
        "global": ((total - held) * previous.double() + sums) / total,
        "holders": torch.where(held > 0, sums / held, previous.double()),
    }[recovery]
    assert torch.equal(found, expected.float())
    assert found.shape == previous.shape


def test_a_previous_tensor_may_lie_in_memory_as_it_likes() -> None:
    transposed = torch.arange(12.0).view(3, 4).t()
    running = RunningSum(TensorSpec((4, 3), torch.float32, True, 0), torch.device("cpu"))
    running.add(Sent(torch.ones(4, 3), {}, 2))
    assert torch.equal(running.mean(transposed, 2, "global"), torch.ones(4, 3))


@pytest.mark.parametrize("cut", [(), (0,), (1,), (0, 1)])
def test_large_tensors_are_summed_as_small_ones_are(cut: tuple[int, ...]) -> None:
    shape = (600, 512)
    kept = {dim: torch.arange(dim, shape[dim], 3) for dim in cut}
    running = RunningSum(
        TensorSpec(shape, torch.float32, True, 0, tuple(Axis(dim, f"g{dim}") for dim in cut)), torch.device("cpu")
    )
    values, mask = torch.randn(shape, generator=torch.Generator().manual_seed(1)), torch.ones(shape, dtype=torch.bool)
    sent = values
    for dim, entries in kept.items():
        sent = sent.index_select(dim, entries)
        axis = torch.zeros(shape[dim], dtype=torch.bool).index_fill_(0, entries, True)
        mask &= axis[:, None] if dim == 0 else axis
    for _ in range(2):
        running.add(Sent(sent, kept, 3))
    assert torch.equal(running.mean(torch.full(shape, 7.0), 6, "holders"), torch.where(mask, values, 7.0))


@settings(max_examples=100, deadline=None)
@given(case=cases(), recovery=st.sampled_from(["global", "zero", "holders"]), parts=st.lists(st.integers(0, 2)))
def test_sums_made_apart_and_merged_give_the_same_mean(
    case: tuple[TensorSpec, list[tuple[dict[int, Tensor], int]]], recovery: Recovery, parts: list[int]
) -> None:
    spec, uploads = case
    generator = torch.Generator().manual_seed(1)
    previous = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
    flat, *edges = (RunningSum(spec, torch.device("cpu")) for _ in range(4))
    for number, (kept, weight) in enumerate(uploads):
        values = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
        for dim, entries in kept.items():
            values = values.index_select(dim, entries)
        flat.add(Sent(values, kept, weight))
        edges[parts[number] if number < len(parts) else 0].add(Sent(values, kept, weight))
    merged = RunningSum(spec, torch.device("cpu"))
    for edge in edges:
        merged.merge(*edge.so_far)
    total = sum(weight for _, weight in uploads)
    expected = flat.mean(previous, total, recovery)
    torch.testing.assert_close(merged.mean(previous, total, recovery), expected, rtol=1e-12, atol=1e-12)


def test_what_was_sent_stays_as_it_is() -> None:
    running = RunningSum(TensorSpec((3, 2), torch.float64, True, 0, (Axis(0, "g"), Axis(1, "h"))), torch.device("cpu"))
    for kept in ({}, {0: torch.tensor([0])}, {1: torch.tensor([1])}, {0: torch.tensor([2]), 1: torch.tensor([0])}):
        sent = torch.ones([len(kept[dim]) if dim in kept else size for dim, size in enumerate((3, 2))]).double()
        running.add(Sent(sent, kept, 5))
        assert torch.equal(sent, torch.ones_like(sent))


@pytest.mark.parametrize("cut", [(), (0,), (1,), (0, 1)])
def test_summands_are_added_in_their_order(cut: tuple[int, ...]) -> None:
    kept = {dim: torch.arange(dim, (60, 50)[dim], 3) for dim in cut}
    spec = TensorSpec((60, 50), torch.float32, True, 0, tuple(Axis(dim, f"g{dim}") for dim in cut))
    generator = torch.Generator().manual_seed(1)
    shape = [len(kept[dim]) if dim in kept else size for dim, size in enumerate((60, 50))]
    # numbers so unlike that float64 rounds their sum otherwise in another order
    sent = [Sent(torch.randn(shape, generator=generator) * 10.0**size, kept, 3) for size in (12, -4, 5, 12, -6)]
    together, one_by_one, reverse = (RunningSum(spec, torch.device("cpu")) for _ in range(3))
    with mock.patch.object(running_sum, "_BLOCK_ENTRIES", 100):
        together.add(*sent)
    for one in sent:
        one_by_one.add(one)
    reverse.add(*sent[::-1])
    assert torch.equal(together.so_far[0], one_by_one.so_far[0])
    assert not torch.equal(reverse.so_far[0], one_by_one.so_far[0])
