"""FDSE's penalty on batch statistics (Eq. 4-7), by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.methods.parts.consistency import ConsistencyLoss, batch_statistics, entering, layer_weights

AGREED = (torch.tensor([1.0, -1.0]), torch.tensor([2.0, 4.0]))
BATCH = torch.tensor([[3.0, 0.0], [5.0, 0.0], [4.0, 3.0]])
"""Means 4 and 1, biased variances 2/3 and 2."""


def matching() -> Tensor:
    """A batch with the agreed statistics."""
    mean, variance = AGREED
    return torch.stack([mean - variance.sqrt(), mean + variance.sqrt()])


def test_weights_of_seven_layers_by_hand() -> None:
    weights = layer_weights(7, beta=0.001)
    assert weights[0] == pytest.approx(0.142429, abs=1e-6)
    assert weights[-1] == pytest.approx(0.143286, abs=1e-6)
    assert sum(weights) == pytest.approx(1)
    assert layer_weights(2, beta=1.0)[1] == pytest.approx(0.731059, abs=1e-6)


def test_statistics_are_biased_and_over_batch_and_positions() -> None:
    mean, variance = batch_statistics(BATCH)
    assert mean.tolist() == [4, 1]
    assert variance.tolist() == pytest.approx([2 / 3, 2])
    images = torch.arange(24.0).view(2, 3, 2, 2)
    mean, variance = batch_statistics(images)
    assert mean.tolist() == [7.5, 11.5, 15.5]
    assert variance.tolist() == pytest.approx([37.25] * 3)  # 0..3 and 12..15 around 7.5


def test_agreement_costs_nothing() -> None:
    assert ConsistencyLoss([AGREED], keep=0.9, beta=0.001)([matching()]).item() == pytest.approx(0, abs=1e-12)


def test_first_two_batches_by_hand() -> None:
    loss = ConsistencyLoss([AGREED], keep=0.9, beta=0.001)
    # (1-g)^2 ||m_b - m_g||^2 / d with m_b - m_g = (3, 2); (1-g)^2 of the mean variance's difference, 4/3 - 3
    assert loss([BATCH]).item() == pytest.approx(0.01 * 13 / 2 + 0.01 * (4 / 3 - 3) ** 2)
    # the same batch again: the estimate is 1 - 0.9^2 = 0.19 of the way
    assert loss([BATCH]).item() == pytest.approx(0.19**2 * (13 / 2 + (4 / 3 - 3) ** 2))


def test_layers_keep_estimates_of_their_own_and_are_weighted() -> None:
    loss = ConsistencyLoss([AGREED, AGREED], keep=0.9, beta=1.0)
    value = 0.01 * (13 / 2 + (4 / 3 - 3) ** 2)
    assert loss([BATCH, matching()]).item() == pytest.approx(0.268941 * value, rel=1e-5)
    assert loss([matching(), BATCH]).item() == pytest.approx((0.268941 * 0.81 + 0.731059) * value, rel=1e-5)


def test_only_the_present_batch_is_differentiated() -> None:
    loss = ConsistencyLoss([AGREED], keep=0.9, beta=0.001)
    first, second = BATCH.clone().requires_grad_(), BATCH.clone().requires_grad_()
    loss([first])
    loss([second]).backward()
    assert first.grad is None
    assert second.grad is not None
    # of the mean term 2 (0.19 * 3) / d * 0.1 / B, of the variance term 2 (0.19 (4/3 - 3)) * 0.1 * 2 (x - m) / B / d
    expected = 2 * 0.57 / 2 * 0.1 / 3 + 2 * 0.19 * (4 / 3 - 3) * 0.1 * 2 * (3 - 4) / 3 / 2
    assert float(second.grad[0, 0]) == pytest.approx(expected)


def test_features_are_recorded_inside_the_block_alone() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    images = torch.randn(5, 3)
    with entering([layers[1], layers[3]]) as features:
        layers(images)
    layers(images)
    assert len(features) == 2
    assert torch.equal(features[0], layers[0](images))
    assert features[1].shape == (5, 2)
