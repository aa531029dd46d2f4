"""Effective movement by hand, and when a block has settled."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedml_dapper.methods.parts.effective_movement import Pace, effective_movement, slope, way


def state(a: float, b: float) -> dict[str, Tensor]:
    return {"a": torch.tensor([a]), "b": torch.tensor([[b]])}


def test_it_is_the_share_of_the_way_that_led_somewhere() -> None:
    """One scalar goes on, the other comes back: they are 3 and 1 away after ways of 3 each."""
    states = [state(0, 0), state(1, 1), state(2, 0), state(3, 1)]
    ways = [way(before, after) for before, after in pairwise(states)]
    assert ways == [2, 2, 2]
    assert way(states[0], states[-1]) == 4
    assert effective_movement(4, ways) == pytest.approx(2 / 3)


def test_what_rests_has_none() -> None:
    assert effective_movement(0, [0.0, 0.0]) == 0


def test_the_slope_is_that_of_least_squares() -> None:
    assert slope([0.5, 0.4, 0.3]) == pytest.approx(-0.1)
    assert slope([1.0, 0.0, 0.5]) == pytest.approx(-0.25)  # (-1 * 1 + 1 * 0.5) / 2
    assert slope([0.3, 0.3]) == 0


def test_a_block_settles_when_the_line_stays_flat() -> None:
    """Movements 1, 0.75, 0.7, 0.68, 0.4: lines through two of them fall by 0.25, 0.05, 0.02 and 0.28."""
    pace = Pace()
    flat = []
    for moved in (None, 2.0, 1.5, 1.4, 1.36, 0.8):
        pace = pace.after_round(1.0, moved, window=2, threshold=0.1)
        flat.append(pace.flat)
    assert flat == [0, 0, 0, 1, 2, 0]
    assert pace.rounds == 6
    assert pace.ways == [1, 1]
    assert pace.movements == [0.68, 0.4]


def test_a_rising_line_is_not_flat_either() -> None:
    pace = Pace().after_round(1.0, None, 2, 0.1).after_round(1.0, 1.0, 2, 0.1)
    assert pace.after_round(1.0, 1.4, 2, 0.1).flat == 0
    assert pace.after_round(1.0, 1.1, 2, 0.1).flat == 1


def test_it_is_remembered_as_plain_values() -> None:
    pace = Pace().after_round(1.0, None, 2, 0.1).after_round(1.0, 1.0, 2, 0.1)
    assert Pace.of(json.loads(json.dumps(pace.values()))) == pace
    assert Pace.of(None) == Pace()
