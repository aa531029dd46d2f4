"""Noise is standard normal, repeats by its key, and gives no number out twice."""

from __future__ import annotations

import torch
from scipy.stats import kstest

from fedml_dapper.randomness.chacha20 import Noise

CPU = torch.device("cpu")


def test_is_standard_normal_and_independent() -> None:
    drawn = Noise.of_run(1, 1).normal((200_001,), CPU)
    assert drawn.dtype == torch.float64
    assert kstest(drawn.numpy(), "norm").pvalue > 0.01
    first, second = drawn[:100_000], drawn[100_000:200_000]  # the two halves of Box and Muller's pairs
    for pairs in ((first, second), (drawn[:-1], drawn[1:])):
        assert abs(float(torch.corrcoef(torch.stack(pairs))[0, 1])) < 0.01


def test_follows_from_seed_and_round_and_goes_on() -> None:
    noise, again, later = Noise.of_run(1, 1), Noise.of_run(1, 1), Noise.of_run(1, 2)
    first = noise.normal((3, 2), CPU)
    assert first.shape == (3, 2)
    assert torch.equal(first, again.normal((3, 2), CPU))
    assert not torch.equal(first, later.normal((3, 2), CPU))
    assert not torch.equal(first, noise.normal((3, 2), CPU))


def test_secret_noise_is_new_every_time() -> None:
    assert not torch.equal(Noise.secret().normal((4,), CPU), Noise.secret().normal((4,), CPU))


def test_shapes_without_axes_and_without_entries() -> None:
    noise = Noise.of_run(1)
    assert noise.normal((), CPU).shape == ()
    assert noise.normal((0, 3), CPU).shape == (0, 3)
