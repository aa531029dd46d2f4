"""What a run says of itself, line by line."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from fedml_dapper.config import Settings
from fedml_dapper.evaluation import progress as shown
from fedml_dapper.evaluation.progress import LiveProgress, LogProgress
from fedml_dapper.federation import ClientRecord, RoundRecord, build_experiment
from fedml_dapper.federation.records import PrivacySpent, RoundSeconds


def test_a_methods_notes_stand_in_the_rounds_line(tiny_settings: Callable[..., Settings]) -> None:
    lines = StringIO()
    progress = LogProgress(Console(file=lines), build_experiment(tiny_settings("method=fedavg")))
    notes = {"votes": {"fc1": 3, "fc2": 6}, "winner": "fc2"}
    seconds = RoundSeconds(total=1.0, evaluation=0.0)
    progress.round_finished(RoundRecord(round=1, scores=None, clients=(), seconds=seconds, notes=notes))
    assert lines.getvalue().startswith("round 1/2  votes (fc1 3, fc2 6)  winner fc2  1.0 s")


def test_epsilon_stands_in_the_rounds_line(tiny_settings: Callable[..., Settings]) -> None:
    lines = StringIO()
    progress = LogProgress(Console(file=lines), build_experiment(tiny_settings("method=fedavg")))
    seconds, spent = RoundSeconds(total=1.0, evaluation=0.0), PrivacySpent(epsilon=3.14159, delta=1e-5)
    progress.round_finished(RoundRecord(round=1, scores=None, clients=(), privacy=spent, seconds=seconds))
    assert lines.getvalue().startswith("round 1/2  epsilon 3.14  1.0 s")


def test_refused_clients_are_named(tiny_settings: Callable[..., Settings]) -> None:
    lines = StringIO()
    progress = LogProgress(Console(file=lines), build_experiment(tiny_settings("method=fedavg")))
    seconds = RoundSeconds(total=1.0, evaluation=0.0)
    refused = {3: "not finite", 7: "not finite"}
    progress.round_finished(
        RoundRecord(round=1, scores=None, clients=(), absent=(3, 5, 7), refused=refused, seconds=seconds)
    )
    assert "refused clients 3, 7" in lines.getvalue()


def test_who_was_screened_out_is_named(tiny_settings: Callable[..., Settings]) -> None:
    lines = StringIO()
    progress = LogProgress(Console(file=lines, width=200), build_experiment(tiny_settings("method=fedavg")))
    seconds = RoundSeconds(total=1.0, evaluation=0.0)
    clients = [
        ClientRecord(
            client=number, domain="scans", level=1, ratio=0, num_samples=1, params=1, macs=1, bytes_up=1, bytes_down=1,
            loss=1, steps=1, seconds=1, counted=counted,
        )
        for number, counted in enumerate((1.0, 0.0, None, 0.3, 0.0))
    ]  # fmt: skip
    progress.round_finished(RoundRecord(round=1, scores=None, clients=tuple(clients), seconds=seconds))
    assert "left out clients 1, 4" in lines.getvalue()


@pytest.mark.parametrize("kind", [LogProgress, LiveProgress])
def test_a_resumed_run_counts_from_where_it_goes_on(
    tiny_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, kind: type[LogProgress]
) -> None:
    lines, now = StringIO(), [1000.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    experiment = build_experiment(tiny_settings("method=fedavg", "comm_round=12"))
    seconds = RoundSeconds(total=100.0, evaluation=0.0)
    rounds = [RoundRecord(round=number, scores=None, clients=(), seconds=seconds) for number in range(1, 7)]
    progress = kind(Console(file=lines), experiment)
    progress.run_resumed(experiment.record(), rounds[:5])
    now[0] += 100
    progress.round_finished(rounds[5])
    progress.run_finished()
    told = [line for line in lines.getvalue().splitlines() if line]
    assert told == ["going on after round 5/12", "round 6/12  100.0 s  ETA 0:10:00"]
