"""FINCH: clustering by first neighbours, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedml_dapper.methods.parts.finch import cluster_means, finch, link_first_neighbours


def at(*degrees: float) -> Tensor:
    """Points on the unit circle."""
    radians = torch.tensor(degrees).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_up_to_three_points_are_one_cluster(count: int) -> None:
    assert finch(at(0, 80, 95)[:count]).tolist() == [0] * count


def test_two_directions_are_two_clusters_whatever_the_lengths() -> None:
    points = at(0, 90, 5, 85) * torch.tensor([[1.0], [9.0], [0.1], [3.0]])
    assert finch(points).tolist() == [0, 1, 0, 1]


def test_steps_are_repeated_while_more_than_one_cluster_is_left() -> None:
    points = at(0, 2, 10, 12, 90, 92, 100, 102)
    assert link_first_neighbours(points).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert finch(points).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_chains_of_neighbours_are_one_cluster() -> None:  # each point's nearest is the one before it
    points = at(30, 31, 28, 24, 18, 10, 0, 120, 121)
    assert link_first_neighbours(points).tolist() == [0] * 7 + [1, 1]


def test_of_equally_near_neighbours_the_lower_index_counts() -> None:
    between = [0.0, 0.0, 1.0]  # cos is 1 / sqrt(2) to the first of either pair
    pairs = [[1.0, 0.0, 1.0], [1.0, 0.0, 0.9], [0.0, 1.0, 1.0], [0.0, 1.0, 0.9]]
    assert link_first_neighbours(torch.tensor([*pairs, between])).tolist() == [0, 0, 1, 1, 0]


def test_cluster_means_by_hand() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 4.0], [3.0, 2.0]])
    assert cluster_means(points, torch.tensor([0, 1, 0])).tolist() == [[2.0, 1.0], [0.0, 4.0]]
