"""A few rounds of what ``chaos_of_sums`` does for as many as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .chaos_of_sums import SumsChaos, problems


@pytest.mark.nightly
def test_sums_among_deaths_are_those_that_the_ledger_names_and_opened_once(tmp_path: Path) -> None:
    report = SumsChaos(tmp_path, seed=1, rounds=3, say=print).run()
    assert problems(report, 3) == []
    assert report.deaths["silo"] >= 3
    assert report.deaths["server"] >= 1


@pytest.mark.nightly
def test_so_they_are_whatever_the_seed(tmp_path: Path, chance: random.Random) -> None:
    seed = chance.randrange(10**6)
    report = SumsChaos(tmp_path, seed, rounds=20, say=print).run()
    assert problems(report, 20) == [], seed
    assert report.deaths.total() >= 10
