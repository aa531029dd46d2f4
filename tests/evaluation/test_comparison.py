"""Runs side by side, as a user lays them: made-up ledgers with known figures, and what cannot be compared."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.evaluation.comparison import compare
from fedml_dapper.federation import LEDGER_NAME, LedgerWriter, RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import ClientOnClock, RoundOnClock
from fedml_dapper.tasks import Metric

from .pages import check_promises

MakeRun = Callable[..., RunRecord]
MakeRound = Callable[..., RoundRecord]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)], prog_name="fedml-dapper")


def clock(elapsed_s: float) -> RoundOnClock:
    client = ClientOnClock(client=0, download_s=1, training_s=7, upload_s=2, joules=35, outcome="in time")
    return RoundOnClock(round_s=10, elapsed_s=elapsed_s, joules=3.5 * elapsed_s, clients=(client,))


@pytest.fixture
def write(tmp_path: Path, make_run: MakeRun, make_round: MakeRound) -> Callable[..., Path]:
    def write(name: str, start: float, timed: bool = False, **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        ledger = LedgerWriter(folder / LEDGER_NAME)
        ledger.run_started(make_run(**changes))
        for number in range(1, 4):
            record = make_round(number, start + number, start - number)
            ledger.round_finished(record.model_copy(update={"clock": clock(10.0 * number)}) if timed else record)
        ledger.run_finished()
        return folder

    return write


def test_it_says_what_was_reached_what_it_cost_and_what_differs(write: Callable[..., Path], tmp_path: Path) -> None:
    settings = {"common_args": {"random_seed": 7}, "train_args": {"comm_round": 20}, "dapper_args": {"output_dir": "a"}}
    other = {"common_args": {"random_seed": 8}, "train_args": {"comm_round": 20}, "dapper_args": {"output_dir": "b"}}
    first = write("first", 60, settings=settings, timed=True)
    second = write("second", 50, settings=other, method="fedavg", timed=True)
    document = json.loads(call(first, second, "--json").stdout)
    assert [(run["name"], run["method"], run["global_accuracy"]["last"]) for run in document["runs"]] == [
        ("first", "dapperfl", 60.0),
        ("second", "fedavg", 50.0),
    ]
    assert document["runs"][0]["bytes"] == 3 * (16_000_000 * 3 + 16_000_000 + 2 * 8_000_100)
    assert document["runs"][0]["clock"]["elapsed_s"] == 30
    assert document["runs"][0]["clock"]["reached"] == {"50.0": 10.0, "60.0": 10.0, "70.0": None}
    assert document["differences"] == {"common_args.random_seed": ["7", "8"]}
    page = tmp_path / "page.html"
    result = call(first, second, "-o", page)
    assert result.exit_code == 0, result.output
    assert str(page) in result.stdout.replace("\n", "")
    html = page.read_text(encoding="utf-8")
    for words in (
        "2 runs compared",
        "over rounds",
        "over bytes",
        "over virtual time",
        "over energy",
        "common_args.random_seed",
    ):
        assert words in html
    assert "Not the same data" not in html
    check_promises(html)


def test_what_one_run_leaves_unset_and_another_lacks_is_no_difference(write: Callable[..., Path]) -> None:
    one = {"comm_args": {"backend": "sp", "dapper_grpc": None}, "dapper_args": {"params": {}}}
    other = {
        "comm_args": {"backend": "sp", "dapper_grpc": {"token_file": None, "server_address": "a:1"}},
        "dapper_args": {"params": {"mine": {"tau": 0.5}}},
    }
    differences = compare([write("one", 60, settings=one), write("other", 60, settings=other)]).differences
    dash = "\N{EN DASH}"
    assert differences == {
        "comm_args.dapper_grpc.server_address": (dash, "a:1"),
        "dapper_args.params.mine.tau": (dash, "0.5"),
    }


def test_virtual_time_is_an_axis_only_where_all_have_it(write: Callable[..., Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call(write("a", 60, timed=True), write("b", 50), "-o", page).exit_code == 0
    html = page.read_text(encoding="utf-8")
    assert "over bytes" in html
    assert "over virtual time" not in html


def test_runs_across_silos_are_laid_over_real_time(write: Callable[..., Path], tmp_path: Path) -> None:
    page, silos = tmp_path / "page.html", {"common_args": {"training_type": "cross_silo"}}
    first, second = write("a", 60, settings=silos), write("b", 50, settings=silos)
    result = call(first, second, "-o", page)
    assert "wall clock" in result.stdout
    assert "over wall clock" in page.read_text(encoding="utf-8")
    [one, _] = compare([first, second]).runs
    assert one.spent("wall clock") == [record.round * one.rounds[0].seconds.total for record in one.rounds]
    assert call(first, write("c", 50), "-o", page).exit_code == 0
    assert "over wall clock" not in page.read_text(encoding="utf-8")


def test_other_data_are_called_that(write: Callable[..., Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call(write("a", 60), write("b", 50, suite="pacs"), "-o", page)
    assert result.exit_code == 0
    assert "their figures do not compare" in " ".join(result.stdout.split())
    assert "Not the same data" in page.read_text(encoding="utf-8")


def test_a_run_whose_model_is_not_finite_is_called_that(write: Callable[..., Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    sound = write("sound", 60)
    ruined = write("ruined", 50)
    ledger = ruined / LEDGER_NAME
    *before, last = ledger.read_text().splitlines()
    changed = json.loads(last) | {"model_is_finite": False, "not_finite": [1]}
    ledger.write_text("\n".join((*before, json.dumps(changed), "")))
    said = "In round 3, client 1 sent values that are not finite (NaN or infinity), and the global model is not finite"
    assert f"ruined: {said}" in " ".join(call(sound, ruined, "-o", page).stdout.split())
    assert said in page.read_text(encoding="utf-8")
    runs = json.loads(call(sound, ruined, "--json").stdout)["runs"]
    assert [(run["not_finite"] or "").startswith(said) for run in runs] == [False, True]


def test_folders_of_one_name_keep_their_paths(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    folders = [write("x/run", 60), write("y/run", 50)]
    assert [each.name for each in compare(folders).runs] == [str(folder) for folder in folders]


def test_a_page_takes_the_place_of_no_device_or_pipe(write: Callable[..., Path], tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    device.symlink_to("/dev/null")
    for place, kind in ((pipe, "a pipe"), (device, "a device"), (tmp_path, "a folder")):
        refused = call(write(f"{kind} 1", 60), write(f"{kind} 2", 50), "-o", place)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == f"fedml-dapper: {place}: that is {kind}; name a plain file\n"
    assert pipe.is_fifo()


def test_what_cannot_be_compared_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    page, first = tmp_path / "page.html", write("a", 60)
    alone = call(first, "-o", page)
    assert (alone.exit_code, "give at least two runs' folders" in alone.output) == (2, True)
    nothing = call(first, tmp_path / "nowhere", "-o", page)
    assert (nothing.exit_code, "nowhere" in nothing.output) == (2, True)
    other = write("b", 50, metric=Metric(name="mean error", unit="px", higher_is_better=False))
    judged = call(first, other, "-o", page)
    assert (judged.exit_code, "compare runs of one task" in " ".join(judged.output.split())) == (2, True)
    assert not page.exists()


def test_shares_of_which_less_is_better_are_not_reached_by_the_largest(write: Callable[..., Path]) -> None:
    errors = Metric("error rate", "%", higher_is_better=False)
    runs = [write(name, start, timed=True, metric=errors) for name, start in (("first", 60), ("second", nan))]
    document = json.loads(call(*runs, "--json").stdout, parse_constant=pytest.fail)
    assert document["runs"][0]["clock"]["reached"] == {}
    assert document["runs"][1]["global_accuracy"]["last"] is None
