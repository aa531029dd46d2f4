"""What a client sends of its change, in whole steps, is never longer than the clip, and has its own noise on top."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf, nan, sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from fedml_dapper.pruning import DENSE, FixedPointMean, NoiseShare, Recovery, Tensors, encoded_changes, slim_tensors
from fedml_dapper.randomness.chacha20 import Noise
from fedml_dapper.secure_sum import FixedPoint

from .test_private import BEFORE, HOLDERS, LAYOUT, PLANS, RULES, adversaries, sent

CLIP = 0.75


def share(std: int = 0, clip: float | None = CLIP, client: int = 1) -> NoiseShare:
    return NoiseShare(clip, std, Noise.of_run(1, 1, client))


def squared_norm(numbers: dict[str, np.ndarray]) -> int:
    """Exactly."""
    return sum(int(number) ** 2 for part in numbers.values() for number in part.ravel().tolist())


def changed_by(change: Tensor) -> tuple[Tensors, Tensors]:
    """Weights before and after, of which float64 loses nothing."""
    return {"w": torch.zeros_like(change)}, {"w": change}


def awkward(count: int, step: float) -> Iterator[Tensor]:
    """Changes that rounding lengthens as far as it can, and what tells of limits."""
    ones = torch.ones(count, dtype=torch.float64)
    for whole in (1, 3, 5):
        yield (whole + 0.5) * step * ones  # every coordinate goes up to the even neighbour
        yield -(whole + 0.5) * step * ones
    least = (floor(CLIP / step / sqrt(count)) // 2 * 2 - 1 + 0.5) * step
    yield least * ones
    yield (least - 2 * step) * ones
    for change in adversaries(count):
        yield change.double()
    yield torch.full((count,), 1e200, dtype=torch.float64)
    yield torch.full((count,), 1e-300, dtype=torch.float64)


@pytest.mark.parametrize("bits", [3, 8, 20, 28])
@pytest.mark.parametrize("count", [1, 14, 100])
def test_no_change_moves_the_whole_numbers_by_more_than_the_clip(bits: int, count: int) -> None:
    """Of which one with all coordinates half way between two steps is the longest."""
    code = FixedPoint(largest=2.0**31 / 2.0**bits / 3, summands=3)
    assert code.scale <= 2**bits
    limit, longest = CLIP * code.scale, 0
    for change in awkward(count, 1 / code.scale):
        before, after = changed_by(change)
        found = squared_norm(encoded_changes(after, before, code, share()))
        assert found <= limit**2, change
        longest = max(longest, found)
    assert sqrt(longest) >= limit - sqrt(count) - 2  # and some come as near as rounding lets them


def test_without_room_for_rounding_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedml_dapper.pruning.noise_share.rounding", lambda coordinates: 0.0)
    code = FixedPoint(largest=1.0, summands=2**20)
    before, after = changed_by(torch.ones(950, dtype=torch.float64))  # to 24.92 steps each, and so to 25
    assert squared_norm(encoded_changes(after, before, code, share())) > (CLIP * code.scale) ** 2


@pytest.mark.parametrize("recovery", RULES)
def test_a_neighbour_whose_change_is_nothing_is_no_further_than_the_clip(recovery: Recovery) -> None:
    """In the sum, with the same noise; the client that is left out in one of them adds its own in both."""
    code = FixedPoint(largest=CLIP, summands=3, noise=0.1)
    others = [sent(plan, torch.randn(14)) for plan in PLANS]
    divided = HOLDERS if recovery == "holders" else {"w": torch.tensor(3.0), "b": torch.tensor(3.0)}

    def mean(uploads: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        summed = FixedPointMean(BEFORE, LAYOUT, recovery, code, 1)
        for client, (plan, upload) in enumerate(zip(PLANS, uploads, strict=True)):
            summed.add(upload, plan, 1, share=share(std=1000, client=client))
        return summed.result()

    furthest = 0.0
    for client, plan in enumerate(PLANS):
        without = [*others]
        without[client] = slim_tensors(BEFORE, LAYOUT, plan)
        neighbour = mean(without)
        for change in adversaries(14):
            with_it = [*others]
            with_it[client] = sent(plan, change)
            found = mean(with_it)
            moved = [(found[name].double() - neighbour[name].double()) * divided[name] for name in ("w", "b")]
            furthest = max(furthest, float(torch.cat([each.flatten() for each in moved]).norm()))
            assert torch.equal(found["n"], BEFORE["n"])
    assert 0.99 * CLIP < furthest <= CLIP + 1e-5  # of float32


@pytest.mark.parametrize("wrong", [inf, -inf, nan])
def test_who_diverged_adds_its_noise_to_nothing(wrong: float) -> None:
    code = FixedPoint(largest=1.0, summands=3)
    before, diverged = changed_by(torch.tensor([1.0, wrong, 0.0], dtype=torch.float64))
    found = encoded_changes(diverged, before, code, share(std=500))
    assert np.array_equal(found["w"], encoded_changes(before, before, code, share(std=500))["w"])
    assert found["w"].any()


def test_noise_is_the_same_whatever_order_tensors_come_in_and_on_each_of_them() -> None:
    code = FixedPoint(largest=1.0, summands=3, noise=0.1)
    after = sent(DENSE, torch.randn(14))
    floats = [name for name in after if name != "n"]
    found = encoded_changes(after, BEFORE, code, share(std=1000))
    backwards = encoded_changes({name: after[name] for name in reversed(after)}, BEFORE, code, share(std=1000))
    quiet = encoded_changes(after, BEFORE, code, share())
    assert sorted(found) == sorted(floats)
    for name in floats:
        assert np.array_equal(found[name], backwards[name])
        assert (found[name] != quiet[name]).all()
        assert found[name].dtype == np.int32


@pytest.mark.parametrize(("clients", "std"), [(3, 0.1), (10, 5.0), (4096, 300.0)])
def test_sums_have_room_for_twelve_deviations_of_noise_and_not_for_thirty(clients: int, std: float) -> None:
    code = FixedPoint(largest=0.5, summands=clients, noise=std)
    assert (clients * 0.5 + 12 * std) * code.scale < 2**31
    assert 2 * (clients * 0.5 + 12 * std) * code.scale >= 2**31 - 1
