from __future__ import annotations

import pytest
import torch

from fedml_dapper.randomness.seeding import Stream, numpy_generator, seed_torch, seeded_layers, torch_generator


def test_streams_repeat_and_are_independent_of_each_other() -> None:
    def draw(seed: int, stream: Stream, *keys: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 10**9, (4,), generator=torch_generator(seed, stream, *keys)).tolist())

    assert draw(1, Stream.BATCHES, 3, 2) == draw(1, Stream.BATCHES, 3, 2)
    draws = {draw(1, Stream.BATCHES, 3, 2), draw(2, Stream.BATCHES, 3, 2), draw(1, Stream.METHOD, 3, 2)}
    assert len(draws | {draw(1, Stream.BATCHES, 2, 3), draw(1, Stream.BATCHES, 3), draw(1, Stream.BATCHES, 3, 0)}) == 6
    assert numpy_generator(1, Stream.PARTITION).integers(10**9) == numpy_generator(1, Stream.PARTITION).integers(10**9)


def test_numbers_are_those_of_manual_seed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
        seed_torch(5)
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="a GPU is in use, and seeded at once")
def test_no_seed_is_noted_down_for_later() -> None:
    before = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
    for client in range(5):
        with seeded_layers(1, Stream.TRAINING, client):
            torch.rand(1)
    assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is before
