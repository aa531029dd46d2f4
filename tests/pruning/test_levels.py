from __future__ import annotations

from collections import Counter

from fedml_dapper.config import LevelArgs
from fedml_dapper.pruning import assign_levels


def test_balanced_levels_are_even_shuffled_and_repeatable() -> None:
    levels = assign_levels(LevelArgs(), 10, seed=1)
    assert Counter(levels) == dict.fromkeys(range(1, 6), 2)
    assert levels == assign_levels(LevelArgs(), 10, seed=1)
    assert any(assign_levels(LevelArgs(), 10, seed) != levels for seed in range(2, 6))


def test_index_mod_is_the_public_codes_rule() -> None:
    assert assign_levels(LevelArgs(assignment="index_mod"), 7, seed=1) == [1, 2, 3, 4, 5, 1, 2]
