from __future__ import annotations

import torch

from fedml_dapper.randomness.seeding import Stream, numpy_generator, torch_generator


def test_streams_repeat_and_are_independent_of_each_other() -> None:
    def draw(seed: int, stream: Stream, *keys: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 10**9, (4,), generator=torch_generator(seed, stream, *keys)).tolist())

    assert draw(1, Stream.BATCHES, 3, 2) == draw(1, Stream.BATCHES, 3, 2)
    draws = {draw(1, Stream.BATCHES, 3, 2), draw(2, Stream.BATCHES, 3, 2), draw(1, Stream.METHOD, 3, 2)}
    assert len(draws | {draw(1, Stream.BATCHES, 2, 3), draw(1, Stream.BATCHES, 3), draw(1, Stream.BATCHES, 3, 0)}) == 6
    assert numpy_generator(1, Stream.PARTITION).integers(10**9) == numpy_generator(1, Stream.PARTITION).integers(10**9)
