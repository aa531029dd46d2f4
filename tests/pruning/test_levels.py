"""Who has which capability level, by the built-in rules."""

from __future__ import annotations

from collections import Counter

import pytest

from fedml_dapper.errors import ConfigError
from fedml_dapper.pruning import LEVEL_RULES, Device, Fleet, Footprint, levels_by


def fleet(clients: int, seed: int = 1) -> Fleet:
    devices = tuple(Device(client, "d", 10) for client in range(clients))
    return Fleet(1, devices, (Footprint(1, 1, 1, 1),) * 5, seed)


def test_balanced_levels_are_even_shuffled_and_repeatable() -> None:
    levels = LEVEL_RULES["balanced"](fleet(10))
    assert Counter(levels) == dict.fromkeys(range(1, 6), 2)
    assert levels == LEVEL_RULES["balanced"](fleet(10))
    assert any(LEVEL_RULES["balanced"](fleet(10, seed)) != levels for seed in range(2, 6))


def test_index_mod_is_the_public_codes_rule() -> None:
    assert LEVEL_RULES["index_mod"](fleet(7)) == [1, 2, 3, 4, 5, 1, 2]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([1, 2], r"`mine` gives \[1, 2\] in round 1; expected 3 levels from 1 to 5"),
        ([1, 2, 6], r"gives \[1, 2, 6\] in round 1"),
        ([0, 1, 2], r"gives \[0, 1, 2\] in round 1"),
        ([1.0, 2.0, 3.0], "`mine` fails in round 1: TypeError: 'float' object cannot be interpreted as an integer"),
        (None, "`mine` fails in round 1: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_rule_gives_everyone_a_level(levels: list[float] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        levels_by(lambda _: levels, "mine", fleet(3))  # type: ignore[arg-type, return-value]
