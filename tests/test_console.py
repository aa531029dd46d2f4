"""What a run says of itself, line by line."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console

from fedml_dapper.config import Settings
from fedml_dapper.console import LogProgress
from fedml_dapper.federation import RoundRecord, build_experiment
from fedml_dapper.federation.records import RoundSeconds


def test_a_methods_notes_stand_in_the_rounds_line(tiny_settings: Callable[..., Settings]) -> None:
    lines = StringIO()
    progress = LogProgress(Console(file=lines), build_experiment(tiny_settings("method=fedavg")))
    notes = {"votes": {"fc1": 3, "fc2": 6}, "winner": "fc2"}
    seconds = RoundSeconds(total=1.0, evaluation=0.0)
    progress.round_finished(RoundRecord(round=1, scores=None, clients=(), seconds=seconds, notes=notes))
    assert lines.getvalue().startswith("round 1/2  votes (fc1 3, fc2 6)  winner fc2  1.0 s")
