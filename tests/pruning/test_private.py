"""No client moves a private sum by more than the clip, whatever it sends; what noise there is, is on the sum."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isclose, nan

import pytest
import torch
from torch import Tensor

from fedml_dapper.pruning import (
    DENSE,
    Axis,
    ChannelGroup,
    ChannelLayout,
    PrivateMean,
    PruningPlan,
    RecoveringMean,
    Recovery,
    TensorSpec,
    clipped,
    disturbed,
    slim_tensors,
)
from fedml_dapper.randomness.chacha20 import Noise

LAYOUT = ChannelLayout(
    {"g": ChannelGroup("g", 4, ("w",))},
    {
        "w": TensorSpec((4, 3), torch.float32, True, 0, (Axis(0, "g"),)),
        "b": TensorSpec((2,), torch.float32, True, 0),
        "n": TensorSpec((), torch.int64, False, 0),
    },
)
BEFORE = {
    "w": torch.linspace(-3, 5, 12).view(4, 3),
    "b": torch.tensor([0.5, -40.0]),
    "n": torch.tensor(5),
}  # fmt: skip
PLANS = (DENSE, PruningPlan({"g": torch.tensor([0, 1])}), PruningPlan({"g": torch.tensor([1, 2])}))
"""So that channel 3 has one holder, channels 0 and 2 have two, channel 1 has three."""
HOLDERS = {"w": torch.tensor([2.0, 3, 2, 1]).view(4, 1), "b": torch.tensor(3.0)}
CLIP = 0.75
RULES: tuple[Recovery, ...] = ("global", "zero", "holders")


def sent(plan: PruningPlan, change: Tensor) -> dict[str, Tensor]:
    """What a client of ``plan`` sends that changes its numbers, in order, by the first of ``change``."""
    before, start = slim_tensors(BEFORE, LAYOUT, plan), 0
    weights = dict(before)
    for name in ("w", "b"):
        count = before[name].numel()
        weights[name] = before[name] + change[start : start + count].view_as(before[name])
        start += count
    return weights


def mean(
    recovery: Recovery, uploads: list[dict[str, Tensor]], std: float = 0.0, clip: float | None = CLIP
) -> dict[str, Tensor]:
    private = PrivateMean(BEFORE, LAYOUT, recovery, clip, std, Noise.of_run(1, 1))
    for plan, upload in zip(PLANS, uploads, strict=True):
        private.add(upload, plan, 1)
    return private.result()


def norm(tensors: dict[str, Tensor]) -> float:
    return float(torch.cat([tensor.double().flatten() for tensor in tensors.values()]).norm())


def adversaries(count: int) -> Iterator[Tensor]:
    """Changes that are as large as they can be, in one place, in all, at random, and no numbers at all."""
    generator = torch.Generator().manual_seed(3)
    for size in (1e-3, 1.0, 1e6, 1e30):
        for place in range(count):
            yield size * torch.eye(count)[place]
        yield torch.full((count,), size)
        for _ in range(20):
            yield size * torch.randn(count, generator=generator)
    for odd in (inf, -inf, nan):
        yield torch.full((count,), odd)


@pytest.mark.parametrize("recovery", RULES)
def test_sensitivity_of_each_rule_against_adversarial_neighbours(recovery: Recovery) -> None:
    others = [sent(plan, torch.randn(14)) for plan in PLANS]
    factor = HOLDERS if recovery == "holders" else {"w": torch.tensor(3.0), "b": torch.tensor(3.0)}
    smallest = 1 if recovery == "holders" else 3
    largest = {"sum": 0.0, "mean": 0.0}
    for client, plan in enumerate(PLANS):
        without = [*others]
        without[client] = slim_tensors(BEFORE, LAYOUT, plan)  # as the server counts in who sent nothing
        neighbour = mean(recovery, without)
        for change in adversaries(14):
            with_it = [*others]
            with_it[client] = sent(plan, change)
            found = mean(recovery, with_it)
            moved = {name: found[name].double() - neighbour[name].double() for name in factor}
            largest["mean"] = max(largest["mean"], norm(moved))
            largest["sum"] = max(largest["sum"], norm({name: moved[name] * factor[name] for name in factor}))
            assert torch.equal(found["n"], BEFORE["n"])
    rounding = 1e-5  # of the new model to float32
    assert largest["sum"] <= CLIP + rounding
    assert largest["mean"] <= CLIP / smallest + rounding
    assert largest["sum"] > 0.99 * CLIP  # and somebody does move it that far
    assert largest["mean"] > 0.99 * CLIP / smallest


def test_the_clip_holds_over_all_tensors_together_and_to_the_last_digit() -> None:
    weights = sent(DENSE, torch.full((14,), 1e4))
    found = clipped(weights, BEFORE, CLIP)
    moved = norm({name: found[name].double() - BEFORE[name].double() for name in ("w", "b")})
    assert moved == pytest.approx(CLIP, abs=1e-12)
    direction = {name: (found[name] - BEFORE[name]) for name in ("w", "b")}
    assert float(direction["w"].std()) < 1e-7  # still the same everywhere


@pytest.mark.parametrize("recovery", RULES)
def test_without_clip_and_noise_it_is_the_plain_mean_bit_for_bit(recovery: Recovery) -> None:
    uploads = [sent(plan, 100 * torch.randn(14)) for plan in PLANS]
    plain = RecoveringMean(BEFORE, LAYOUT, recovery)
    for plan, upload in zip(PLANS, uploads, strict=True):
        plain.add(upload, plan, 1)
    expected = plain.result()
    for clip in (None, 1e9):
        found = mean(recovery, uploads, clip=clip)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("recovery", RULES)
def test_noise_has_its_deviation_on_the_sum_and_none_where_nobody_holds(recovery: Recovery) -> None:
    std, columns = 0.3, 60_000  # of so many numbers a deviation is off by 0.3 % (1 / sqrt(2 n)), a seventh of 2 %
    wide = ChannelLayout(
        LAYOUT.groups, {"w": TensorSpec((4, columns), torch.float32, True, 0, (Axis(0, "g"),))}
    )  # fmt: skip
    zeros = {"w": torch.zeros(4, columns)}
    private = PrivateMean(zeros, wide, recovery, CLIP, std, Noise.of_run(1, 1))
    for plan in PLANS:
        private.add(slim_tensors(zeros, wide, plan), plan, 1)
    divided = HOLDERS["w"] if recovery == "holders" else 3.0
    noise = private.result()["w"].double() * divided
    deviations = noise.std(dim=1)  # by channel, whose holders are one, two or three
    assert bool(((deviations - std).abs() < 0.02 * std).all()), deviations

    only_first = PrivateMean(BEFORE, LAYOUT, recovery, CLIP, std, Noise.of_run(1, 1))
    only_first.add(slim_tensors(BEFORE, LAYOUT, PLANS[1]), PLANS[1], 1)
    result = only_first.result()["w"]
    untouched = torch.zeros(2, 3) if recovery == "zero" else BEFORE["w"][2:]
    assert torch.equal(result[2:], untouched)
    assert not torch.equal(result[:2], BEFORE["w"][:2])


def test_sums_of_edges_are_clipped_there_and_have_noise_once() -> None:
    uploads = [sent(plan, 100 * torch.randn(14)) for plan in PLANS]
    edge = PrivateMean(BEFORE, LAYOUT, "holders", CLIP, 0.3, Noise.of_run(9, 9))
    edge.add(uploads[1], PLANS[1], 1)
    edge.add(uploads[2], PLANS[2], 1)
    server = PrivateMean(BEFORE, LAYOUT, "holders", CLIP, 0.3, Noise.of_run(1, 1))
    server.add(uploads[0], PLANS[0], 1)
    server.merge(edge.partial())
    together = mean("holders", uploads, std=0.3)
    found = server.result()
    assert all(torch.allclose(found[name], together[name], atol=1e-6) for name in found)


def test_a_client_adds_its_own_noise_to_floats_alone() -> None:
    weights = {name: tensor.expand(5000, *tensor.shape) for name, tensor in BEFORE.items()}
    found = disturbed(weights, 0.2, Noise.of_run(1, 1, 0))
    assert torch.equal(found["n"], weights["n"])
    deviation = float((found["w"] - weights["w"]).std())
    assert isclose(deviation, 0.2, rel_tol=0.02)  # of 60,000 numbers it is off by 0.3 % (1 / sqrt(2 n))
    assert disturbed(weights, 0, Noise.of_run(1)) == weights
