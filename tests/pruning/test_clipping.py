from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor

from fedml_dapper.pruning import (
    DENSE,
    Axis,
    ChannelGroup,
    ChannelLayout,
    ClippedMean,
    PruningPlan,
    RecoveringMean,
    TensorSpec,
    relative_change,
)

LAYOUT = ChannelLayout(
    {"g": ChannelGroup("g", 4, ("w",))},
    {"w": TensorSpec((4,), torch.float32, True, 0, (Axis(0, "g"),)), "n": TensorSpec((), torch.int64, False, 0)},
)
BEFORE = {"w": torch.tensor([3.0, 4.0, 0.0, 12.0]), "n": torch.tensor(1)}
FIRST_TWO = PruningPlan({"g": torch.tensor([0, 1])})


def upload(*values: float, count: int = 2) -> dict[str, Tensor]:
    return {"w": torch.tensor(values), "n": torch.tensor(count)}


def test_change_is_relative_to_what_is_held_and_leaves_counters_out() -> None:
    before = {"w": BEFORE["w"][:2], "n": BEFORE["n"]}
    assert relative_change(upload(3.0, 9.0, count=10**6), before) == 1.0
    assert relative_change(upload(3.0, 4.0), before) == 0.0
    zero = {"w": torch.zeros(2), "n": torch.tensor(0)}
    assert relative_change(upload(0.0, 0.0), zero) == 0.0
    assert relative_change(upload(0.0, 1.0), zero) == float("inf")
    assert relative_change(upload(3e38, 3e38), before) == pytest.approx(sqrt(2) * 3e38 / 5)  # no overflow


def test_only_what_goes_too_far_is_shortened_along_its_direction() -> None:
    mean = ClippedMean(BEFORE, LAYOUT, "global", limit=0.5)
    mean.add(upload(3.0, 104.0), FIRST_TWO, 1)  # moved by 100, allowed are 0.5 * 5: to [3, 6.5]
    mean.add(upload(5.0, 4.0, 0.0, 12.0, count=7), DENSE, 1)
    result = mean.result()
    assert result["w"].tolist() == [4.0, 5.25, 0.0, 12.0]
    assert int(result["n"]) == 7


def test_within_the_limit_it_is_the_plain_mean_bit_for_bit() -> None:
    clipped, plain = ClippedMean(BEFORE, LAYOUT, "holders", limit=1.0), RecoveringMean(BEFORE, LAYOUT, "holders")
    for mean in (clipped, plain):
        mean.add(upload(3.1, 4.7), FIRST_TWO, 7)
        mean.add(upload(2.9, 3.3, 0.3, 11.1), DENSE, 11)
    assert torch.equal(clipped.result()["w"], plain.result()["w"])
