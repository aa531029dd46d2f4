"""The distance of FedCMD and FedAP, by hand."""

from __future__ import annotations

import pytest
import torch

from fedml_dapper.methods.parts.wasserstein import Moments, wasserstein


def test_distance_by_hand() -> None:
    left = torch.tensor([[0.0, 1.0], [2.0, 2.0]])  # means, deviations
    right = torch.tensor([[3.0, 1.0], [2.0, 6.0]])
    assert wasserstein(left, right).item() == 5
    assert wasserstein(torch.stack([left, right]), left).tolist() == [0, 5]


@pytest.mark.parametrize("sizes", [(7,), (1, 6), (2, 2, 3)])
def test_moments_do_not_depend_on_the_batches(sizes: tuple[int, ...]) -> None:
    values = torch.randn(7, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.0]) + torch.tensor([0.0, 9.0, 4.0])
    moments = Moments(3)
    for batch in torch.split(values, list(sizes)):
        moments.add(batch)
    expected = torch.stack([values.mean(dim=0), values.std(dim=0, correction=0)])
    torch.testing.assert_close(moments.gaussian(), expected)
    low, high = values.amin(dim=0), values.amax(dim=0)
    scaled = (values[:, :2] - low[:2]) / (high - low)[:2]
    expected = torch.stack([scaled.mean(dim=0), scaled.std(dim=0, correction=0)])
    torch.testing.assert_close(moments.scaled()[:, :2], expected)
    assert moments.scaled()[:, 2].tolist() == [0, 0]  # a constant
