"""A few rounds of what ``chaos`` does for as many as one likes; no silo misses a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chaos import Chaos, problems


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [3, 10])
def test_a_disturbed_run_ends_with_what_its_ledger_says(tmp_path: Path, rounds: int) -> None:
    report = Chaos(tmp_path, seed=4, rounds=rounds, say=print, rounds_missed=[0]).run()
    assert problems(report, rounds) == []
    assert report.events.total() >= rounds // 3


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [6, 20])
def test_so_does_one_whose_rounds_do_not_wait_for_a_slow_silo(tmp_path: Path, rounds: int) -> None:
    report = Chaos(tmp_path, seed=1, rounds=rounds, say=print, rounds_missed=[0], buffer_size=3).run()
    assert problems(report, rounds) == []
    assert any(one.begun is not None for record in report.rounds for one in record.clients)
