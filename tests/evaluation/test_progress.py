"""What a run says of itself, line by line."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedml_dapper.config import Settings
from fedml_dapper.evaluation import progress as shown
from fedml_dapper.evaluation.progress import LiveProgress, LogProgress
from fedml_dapper.evaluation.terminal import say, say_place
from fedml_dapper.federation import ClientRecord, RoundRecord, Scores, build_experiment, simulate
from fedml_dapper.federation.run_folder.records import PrivacySpent, RoundSeconds

from ..waiting import wait_until


def test_a_line_that_is_too_long_is_divided_between_its_parts(tiny_settings: Callable[..., Settings]) -> None:
    lines, experiment = StringIO(), build_experiment(tiny_settings("method=fedavg"))
    progress = LogProgress(Console(file=lines, width=80), experiment)
    accuracies = {f"domain_{number}": 10.5 * number for number in range(1, 8)}
    scores = Scores(
        global_accuracy=42, domain_accuracy=accuracies, domain_loss=dict.fromkeys(accuracies, 1.0),
        best_global_accuracy=43, best_domain_accuracy=accuracies,
    )  # fmt: skip
    seconds, refused = RoundSeconds(total=1.0, evaluation=0.0), dict.fromkeys(range(20, 25), "not finite")
    record = RoundRecord(round=1, scores=scores, clients=(), seconds=seconds, refused=refused)
    progress.round_finished(record)
    head, *rest = lines.getvalue().splitlines()
    assert head == "round 1/2  global 42.0 % (best 43.0)  refused clients 20, 21, 22, 23, 24  1.0 s"
    assert rest[0].startswith("ETA ")
    assert rest[1:] == [
        "           domain_1 10.5  domain_2 21.0  domain_3 31.5  domain_4 42.0",
        "           domain_5 52.5  domain_6 63.0  domain_7 73.5",
    ]
    for width in range(60, 100):
        narrow = StringIO()
        LogProgress(Console(file=narrow, width=width), experiment).round_finished(record)
        assert max(map(len, narrow.getvalue().splitlines())) <= width
    wide = StringIO()
    LogProgress(Console(file=wide, width=250), experiment).round_finished(record)
    assert len(wide.getvalue().splitlines()) == 1


def test_within_a_long_round_the_log_says_where_it_is(tiny_settings: Callable[..., Settings]) -> None:
    lines, experiment = StringIO(), build_experiment(tiny_settings("method=fedavg"))
    progress = LogProgress(Console(file=lines, width=80), experiment, every_s=0.01)
    progress.run_started(experiment.record())
    progress.round_started(1, [4, 7])
    wait_until(lambda: "round 1/2  2 clients at work, " in lines.getvalue())
    progress.client_stepped(4, 9, 9)
    progress.client_stepped(7, 3, 9)
    step = f"1 of 2 trained  client 7 (level {experiment.profiles[7].level}) step 3/9"
    wait_until(lambda: step in lines.getvalue())
    progress.run_finished()
    assert max(map(len, lines.getvalue().splitlines())) <= 80


@pytest.mark.nightly
def test_a_short_round_says_nothing_before_its_end(tiny_settings: Callable[..., Settings]) -> None:
    lines, experiment = StringIO(), build_experiment(tiny_settings("method=fedavg", "comm_round=1", "epochs=1"))
    simulate(experiment, [LogProgress(Console(file=lines, width=80), experiment, every_s=600)])
    assert [line.split()[0] for line in lines.getvalue().splitlines() if not line.startswith(" ")] == ["round"]


def test_paths_are_whole_however_long(tmp_path: Path) -> None:
    lines = StringIO()
    console = Console(file=lines, width=40)
    say_place(console, "Report", Path("/short/report.html"))
    say_place(console, "Report", Path("/a/folder/with a space/and/a/long/name/report.html"))
    say(console, "note: /a/folder/with/a/very/long/name/of/its/own is not what it was in the run")
    assert lines.getvalue().splitlines() == [
        "Report: /short/report.html",
        "Report:",
        "/a/folder/with a space/and/a/long/name/report.html",
        "note:",
        "/a/folder/with/a/very/long/name/of/its/own",
        "is not what it was in the run",
    ]


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
