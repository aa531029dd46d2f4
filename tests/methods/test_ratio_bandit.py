"""FedMP's bandit by hand."""

from __future__ import annotations

import math

import pytest

from fedml_dapper.methods.parts.ratio_bandit import Leaf, choose, learn


def test_bound_by_hand() -> None:
    leaf = Leaf(0, 4, pulls=2.0, rewards=1.0)
    assert leaf.bound(all_pulls=math.e - 1, exploration=0.5) == pytest.approx(0.5 + 0.5 * 1.0)
    assert leaf.bound(all_pulls=math.e - 1, exploration=0.0) == 0.5
    assert Leaf(0, 4).bound(0.0, 0.5) == math.inf


def test_pulled_interval_is_halved_and_the_past_discounted() -> None:
    leaves = learn([Leaf(0, 9)], arm=4, reward=0.6, discount=0.5)
    assert leaves == [Leaf(0, 4, 0.5, 0.3), Leaf(4, 9, 0.5, 0.3)]
    leaves = learn(leaves, arm=6, reward=1.0, discount=0.5)
    assert leaves == [
        Leaf(0, 4, 0.25, 0.15),
        Leaf(4, 6, 0.625, pytest.approx(0.575)),
        Leaf(6, 9, 0.625, pytest.approx(0.575)),
    ]


def test_single_arms_are_not_halved() -> None:
    assert learn([Leaf(0, 1), Leaf(1, 2)], arm=1, reward=0.5, discount=0.5) == [Leaf(0, 1), Leaf(1, 2, 1.0, 0.5)]


def test_largest_bound_wins_and_ties_go_to_the_lower_arms() -> None:
    assert choose([Leaf(0, 4, 1, 0.2), Leaf(4, 9, 1, 0.3)], exploration=0.1).low == 4
    assert choose([Leaf(0, 4, 1, 0.2), Leaf(4, 9, 1, 0.2)], exploration=0.1).low == 0
    assert choose([Leaf(0, 4, 0.1, 0.02), Leaf(4, 9, 5, 1.5)], exploration=0.0).low == 4
    assert choose([Leaf(0, 4, 0.1, 0.02), Leaf(4, 9, 5, 1.5)], exploration=1.0).low == 0  # rarely pulled


def test_it_finds_the_best_arm() -> None:
    leaves, pulled = [Leaf(0, 9)], []
    for _ in range(60):
        arm = choose(leaves, exploration=0.1).arm
        pulled.append(arm)
        leaves = learn(leaves, arm, reward=0.5 - 0.1 * abs(arm - 6), discount=0.95)
    assert sum(arm == 6 for arm in pulled[-30:]) >= 15
    assert [*range(9)] == [arm for leaf in leaves for arm in range(leaf.low, leaf.high)]
