"""The direction that hurts no client, by hand and by its optimality."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedml_dapper.methods.parts.min_norm import consensus_step, min_norm_weights


def rows(*values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("units", "weights", "products"),
    [
        (rows((1, 0), (0, 1)), [0.5, 0.5], [0.5, 0.5]),
        (rows((1, 0), (-0.6, 0.8)), [0.5, 0.5], [0.2, 0.2]),
        (rows((1, 0), (0, 1), (-0.6, 0.8)), [0.5, 0.0, 0.5], [0.2, 0.4, 0.2]),
        (rows((1, 0)), [1.0], [1.0]),
    ],
)
def test_weights_by_hand(units: Tensor, weights: list[float], products: list[float]) -> None:
    found = min_norm_weights(units)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(weights, abs=1e-12)
    assert (units @ (found @ units)).tolist() == pytest.approx(products, abs=1e-12)


@pytest.mark.parametrize(("clients", "length"), [(3, 2), (5, 40), (12, 7), (20, 3000)])
def test_weights_are_optimal_at_any_length(clients: int, length: int) -> None:
    generator = torch.Generator().manual_seed(clients)
    for shift in (0.0, 1.0, 10.0):  # from directions all over to nearly the same ones
        points = torch.randn(clients, length, generator=generator, dtype=torch.float64) + shift
        units = points / torch.linalg.vector_norm(points, dim=1, keepdim=True)
        weights = min_norm_weights(units)
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
        assert bool((weights >= 0).all())
        products = units @ (weights @ units)
        assert float(products.min()) >= float(weights @ products) - 1e-12  # no vertex improves on it


def test_step_by_hand() -> None:
    step = consensus_step(rows((3, 0), (0, 1)))
    assert step.tolist() == pytest.approx([1, 1], abs=1e-12)  # the mean would be (1.5, 0.5)
    skewed = rows((2, 0), (-3, 4))
    assert consensus_step(skewed).tolist() == pytest.approx([0.7, 1.4], abs=1e-12)  # r = 3.5


def test_step_hurts_nobody() -> None:
    updates = torch.randn(6, 5, dtype=torch.float64) * torch.tensor([[1e-3], [1], [1], [30], [1], [1]])
    assert bool((updates @ consensus_step(updates) >= -1e-12).all())


def test_identical_updates_are_followed() -> None:
    update = torch.randn(50, dtype=torch.float64)
    torch.testing.assert_close(consensus_step(update.repeat(4, 1)), update, rtol=1e-12, atol=0)


def test_a_client_that_stands_still_counts_in_the_length_alone() -> None:
    step = consensus_step(rows((3, 0), (0, 0), (0, 1)))
    assert step.tolist() == pytest.approx([4 / 3 / 2, 4 / 3 / 2], abs=1e-12)
    assert consensus_step(rows((0, 0), (0, 0))).tolist() == [0, 0]


def test_opposed_updates_cancel() -> None:
    assert consensus_step(rows((2, 0), (-5, 0))).tolist() == pytest.approx([0, 0], abs=1e-12)
