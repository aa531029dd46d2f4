from __future__ import annotations

import pytest
import torch

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.parts.averaging import WeightedMean

PREVIOUS = {"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(7)}


def test_mean_by_hand_and_the_largest_integer() -> None:
    mean = WeightedMean(PREVIOUS)
    mean.add({"w": torch.tensor([2.0, 4.0]), "steps": torch.tensor(3)}, 1)
    mean.add({"w": torch.tensor([6.0, 0.0]), "steps": torch.tensor(5)}, 3)
    result = mean.result()
    assert result["w"].tolist() == [5.0, 1.0]
    assert result["w"].dtype == torch.float32
    assert (int(result["steps"]), result["steps"].dtype) == (5, torch.int64)


def test_integers_below_zero_stay_so() -> None:
    mean = WeightedMean({"offsets": torch.tensor([-1, 0, 1])})
    for _ in range(2):
        mean.add({"offsets": torch.tensor([-1, 0, 1])}, 1)
    assert mean.result()["offsets"].tolist() == [-1, 0, 1]


def test_sums_are_in_float64() -> None:
    mean = WeightedMean({"w": torch.tensor(0.0)})
    for value in (2.0**30, 1.0, -(2.0**30)):  # float32 would lose the 1
        mean.add({"w": torch.tensor(value)}, 1)
    assert float(mean.result()["w"]) == pytest.approx(1 / 3)


def test_without_contributions_the_previous_values_stay() -> None:
    assert WeightedMean(PREVIOUS).result() is PREVIOUS


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": torch.zeros(2)},
        {"w": torch.zeros(2), "steps": torch.tensor(1), "more": torch.zeros(1)},
        {"w": torch.zeros(3), "steps": torch.tensor(1)},
        {"w": torch.zeros(2), "steps": torch.tensor(1.0)},
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_no_trace(tensors: dict[str, torch.Tensor]) -> None:
    mean = WeightedMean(PREVIOUS)
    with pytest.raises(ProtocolError):
        mean.add(tensors, 1)
    assert mean.result() is PREVIOUS
