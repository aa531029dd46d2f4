"""What our own log looks like, and that no word in it makes a line of its own."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from fedml_dapper.commands.options import LogFormat
from fedml_dapper.evaluation.log_lines import RoundLines
from fedml_dapper.federation import RoundRecord
from fedml_dapper.federation.run_folder.records import RoundSeconds, Scores
from fedml_dapper.process.log import show_log
from fedml_dapper.tasks import TOP_1, Metric

LOGGER = logging.getLogger("fedml_dapper.platform.anything")
FORGED = "refused a call of `silo-1\n2026-11-24 10:00:00 INFO server: all is well\x1b[2J\u2028`"


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    logger = logging.getLogger("fedml_dapper")
    before, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = before, propagate
    logger.setLevel(level)


def said(capsys: pytest.CaptureFixture[str], log_format: LogFormat) -> list[str]:
    show_log("server", log_format)
    LOGGER.info("connected to %s", "here")
    LOGGER.warning("%s", FORGED)
    try:
        float("why")
    except ValueError:
        LOGGER.exception("broken")
    return capsys.readouterr().err.splitlines()


def test_text_has_date_and_level_and_one_line_for_each_message(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, *traceback = said(capsys, "text")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO server: connected to here", first)
    assert r"silo-1\n2026-11-24 10:00:00 INFO server: all is well\x1b[2J\u2028`" in second
    assert third.endswith("ERROR server: broken")
    assert traceback[-1] == "ValueError: could not convert string to float: 'why'"


def test_json_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = map(json.loads, said(capsys, "json"))
    assert first.keys() == {"at", "level", "who", "module", "text"}
    assert first["at"].endswith("+00:00")
    assert (first["level"], first["who"], first["module"]) == ("INFO", "server", LOGGER.name)
    assert second["text"] == FORGED
    assert "ValueError: could not convert" in third["error"]


def test_a_round_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_log("server", "json")
    record = RoundRecord(round=3, scores=None, clients=(), absent=(1, 2), seconds=RoundSeconds(total=2.0, evaluation=0))
    RoundLines(TOP_1).round_finished(record)
    assert json.loads(capsys.readouterr().err)["text"] == "round 3 is closed: 0 uploads, 2 absent, 2.0 s"


def test_a_round_that_came_to_nothing_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    show_log("server", "json")
    seconds = RoundSeconds(total=2.0, evaluation=0)
    record = RoundRecord(round=3, scores=None, clients=(), rolled_back="nobody came in time", seconds=seconds)
    RoundLines(TOP_1).round_finished(record)
    text = json.loads(capsys.readouterr().err)["text"]
    assert text == "round 3 is closed: 0 uploads, 0 absent, 2.0 s, model as before: nobody came in time"


def test_a_round_s_line_has_the_task_s_own_figure_and_says_what_is_not_finite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_log("server", "json")
    scores = Scores(
        global_accuracy=0.5,
        domain_accuracy={"a": 0.5},
        domain_loss={"a": float("nan")},
        best_global_accuracy=0.5,
        best_domain_accuracy={"a": 0.5},
    )
    record = RoundRecord(
        round=3, scores=scores, clients=(), not_finite=(1,), seconds=RoundSeconds(total=2.0, evaluation=0)
    )
    RoundLines(Metric("error", "m", higher_is_better=False)).round_finished(record)
    text = json.loads(capsys.readouterr().err)["text"]
    assert text.endswith("2.0 s, NOT FINITE: client 1, test loss NOT FINITE: a, error 0.5 m")


def test_a_second_run_in_one_process_says_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_log("server", "text")
    show_log("server", "json")
    LOGGER.info("once")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["text"] == "once"
