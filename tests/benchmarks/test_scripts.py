"""Each script on something tiny: that it runs, and that it says what it promises."""

from __future__ import annotations

import json
import shutil
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import (  # names
    aggregate,
    clients,
    compiled,
    limits,
    one_pass,
    round,
    secure_aggregation,
    step,
    step_parts,
    wire,
)


def findings(command: click.Command, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*arguments, "--runs", "1", "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout[result.stdout.index("{") :])
    assert {"name", "machine", "runs", "rows"} <= document.keys()
    return document


def test_steps() -> None:
    rows = findings(step.main, "--model", "resnet10", "--width", "8", "--batch", "4", "--threads", "1")["rows"]
    assert [row["ratio"] for row in rows if row["precision"] == "bf16"] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert rows[0]["time of dense"] == 1
    assert rows[4]["MACs of dense"] == pytest.approx(0.2, abs=0.05)


@pytest.mark.long
def test_clients_in_one_pass() -> None:
    [row] = findings(one_pass.main, "--model", "resnet10", "--width", "8", "--batch", "4", "--clients", "2")["rows"]
    assert row["clients"] == 2
    assert row["one pass, of that"] > 0


@pytest.mark.nightly
def test_steps_as_shares_of_what_the_machine_can_do() -> None:
    found = findings(limits.main, "--model", "resnet10", "--batch", "4", "--precision", "fp32", "--threads", "1")
    shares = {row["work"]: row["of the convolution"] for row in found["rows"]}
    assert shares["fp32 convolution, with gradients"] == 1
    assert shares["fp32 step, ratio 0.8"] > 0
    assert found["memory, GB/s read and written"] > 0


@pytest.mark.long
@pytest.mark.nightly  # half a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, by which torch compiles")
def test_a_compiled_step() -> None:
    """It compiles for real; whether it pays is for a quiet machine to say."""
    [row] = findings(compiled.main, "--model", "resnet10", "--width", "4", "--batch", "4", "--ratio", "0.8")["rows"]
    assert row["seconds of compiling"] > row["seconds"]
    assert row["compiled, of that"] > 0


@pytest.mark.nightly
def test_parts_of_a_step_are_shares_of_it() -> None:
    arguments = ("--model", "resnet10", "--width", "8", "--batch", "8", "--norm", "standardised")
    rows = findings(step_parts.main, *arguments)["rows"]
    assert [row["ratio"] for row in rows] == [0.0, 0.2, 0.4, 0.6, 0.8]
    for row in rows:
        assert row["convolution"] > row["optimizer"] > 0
        assert row["Python and the rest"] < 0.9


@pytest.mark.nightly
def test_aggregation_reads_what_was_sent_and_needs_no_model_a_client() -> None:
    found = findings(aggregate.main, "--model", "resnet10", "--clients", "5", "--threads", "1")
    dense, slim = found["rows"][:2]
    assert slim["MB in"] == pytest.approx(0.6 * dense["MB in"], rel=0.02)
    assert found["the same, ten times as many clients"] < 4


@pytest.mark.nightly
def test_messages() -> None:
    rows = findings(wire.main, "--model", "resnet10", "--threads", "1")["rows"]
    by_uplink = {row["uplink"]: row["MB sent"] for row in rows if row["ratio"] == 0}
    assert by_uplink["int8"] < 0.3 * by_uplink["fp32"]
    assert by_uplink["bf16"] == pytest.approx(0.5 * by_uplink["fp32"], rel=0.02)


@pytest.mark.nightly
def test_secure_aggregation_sends_hardly_more_than_it_masks() -> None:
    arguments = ("--model", "resnet10", "--clients", "4,6", "--masking", "4", "--threads", "1")
    rows = findings(secure_aggregation.main, *arguments)["rows"]
    kinds = ["full", "nested", "random"]
    assert [(row["plans"], row["clients"]) for row in rows] == [(kind, count) for count in (4, 6) for kind in kinds]
    assert all(row["of plain"] < 1.1 for row in rows)
    assert all((row["all CPU s"] == "") == (row["clients"] == 6) for row in rows)


@pytest.mark.nightly
def test_many_clients() -> None:
    rows = findings(clients.main, "--sizes", "4,8")["rows"]
    assert [row["clients"] for row in rows] == [4, 8]
    assert rows[0]["peak MB, of 4"] == 1


def test_a_round_needs_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPPER_DATA", "/nowhere")
    result = CliRunner().invoke(round.main, ["--runs", "1"])
    assert result.exit_code != 0
    assert "DAPPER_DATA" in str(result.exception)
