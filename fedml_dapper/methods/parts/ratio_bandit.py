"""A discounted upper-confidence-bound bandit over a tree of pruning ratios (E-UCB of FedMP).

Arms are numbered; neighbours are similar. The leaves of a binary tree cut the numbers into intervals, and an interval
is halved when it is pulled, until it holds a single arm. So the grid of arms gets finer only where the bandit looks.
Everything is a pure function of a list of leaves, which is also what JSON sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Leaf(NamedTuple):
    """A leaf, arms ``low`` to ``high - 1``: how often they were pulled and what that earned, older pulls counting
    less."""

    low: int
    high: int
    pulls: float = 0.0
    rewards: float = 0.0

    @property
    def arm(self) -> int:
        """The arm in the middle, which stands for all."""
        return (self.low + self.high) // 2

    def bound(self, all_pulls: float, exploration: float) -> float:
        """Upper confidence bound: mean reward + exploration * sqrt(2 ln(1 + N) / N_leaf); infinite before any pull."""
        if self.pulls == 0:
            return math.inf
        padding = math.sqrt(2 * math.log1p(all_pulls) / self.pulls)
        return self.rewards / self.pulls + exploration * padding


def choose(leaves: Sequence[Leaf], exploration: float) -> Leaf:
    """The leaf of the largest bound; of equals the one of the lowest arms."""
    all_pulls = sum(leaf.pulls for leaf in leaves)
    return max(leaves, key=lambda leaf: leaf.bound(all_pulls, exploration))


def learn(leaves: Sequence[Leaf], arm: int, reward: float, discount: float) -> list[Leaf]:
    """The leaves after ``arm`` earned ``reward``: the past is discounted, and the leaf that holds the arm is halved.

    Each half inherits half the pulls and half the rewards, so both start from their parent's mean.
    """
    learnt = []
    for leaf in leaves:
        low = leaf.low
        high = leaf.high
        pulls = discount * leaf.pulls
        rewards = discount * leaf.rewards
        if not low <= arm < high:
            learnt.append(Leaf(low, high, pulls, rewards))
        elif high - low == 1:
            learnt.append(Leaf(low, high, pulls + 1, rewards + reward))
        else:
            earned = (pulls + 1) / 2, (rewards + reward) / 2
            learnt += [Leaf(low, leaf.arm, *earned), Leaf(leaf.arm, high, *earned)]
    return learnt
