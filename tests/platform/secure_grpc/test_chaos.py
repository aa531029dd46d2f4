"""Eight rounds of what ``chaos`` does for as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chaos import Chaos, problems


@pytest.mark.long
def test_a_disturbed_run_ends_with_what_its_ledger_says(tmp_path: Path) -> None:
    report = Chaos(tmp_path, seed=4, rounds=8, say=print).run()
    assert problems(report, rounds=8) == []
    assert report.events.total() > 3
