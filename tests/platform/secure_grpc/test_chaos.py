"""Five rounds of what ``chaos`` does for as many as one likes; no silo misses a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chaos import Chaos, problems


@pytest.mark.long
def test_a_disturbed_run_ends_with_what_its_ledger_says(tmp_path: Path) -> None:
    report = Chaos(tmp_path, seed=4, rounds=5, say=print, rounds_missed=[0]).run()
    assert problems(report, rounds=5) == []
    assert report.events.total() > 2
