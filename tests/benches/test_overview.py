"""How far benches are, and one page that leads to all that is there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedml_dapper.benches.grid import cells, load_bench
from fedml_dapper.benches.overview import INDEX_NAME, standing
from fedml_dapper.benches.results import CELLS_NAME, MANIFEST_NAME, load_results
from fedml_dapper.cli import main
from fedml_dapper.errors import DataError
from fedml_dapper.federation import LEDGER_NAME

from .conftest import Store, run_record


def ledger(folder: Path, rounds: int, planned: int) -> None:
    """One of so many of the planned rounds."""
    folder.mkdir(parents=True)
    lines = [run_record("FedAvg", 1, planned).model_dump_json(), *("{}" for _ in range(rounds))]
    (folder / LEDGER_NAME).write_text("".join(f"{line}\n" for line in lines))


def test_a_bench_is_not_run_partly_or_complete(tmp_path: Path) -> None:
    bench = load_bench("official")
    declared = [cell.folder for cell in cells(bench, "small")]
    assert standing(bench, "small", tmp_path).state == "not run"
    ledger(tmp_path / CELLS_NAME / declared[0], rounds=3, planned=3)
    ledger(tmp_path / CELLS_NAME / declared[1], rounds=2, planned=3)
    found = standing(bench, "small", tmp_path)
    assert (found.state, found.finished, found.planned) == ("partly", 1, len(declared))
    for name in declared[2:]:
        ledger(tmp_path / CELLS_NAME / name, rounds=3, planned=3)
    with (tmp_path / CELLS_NAME / declared[1] / LEDGER_NAME).open("a") as file:
        file.write("{}\n")
    assert standing(bench, "small", tmp_path).state == "complete"


def test_cells_of_a_bench_that_was_started_with_other_settings_count(tmp_path: Path) -> None:
    bench = load_bench("official")
    arguments = ["bench", "official", "--profile", "small", "--output", str(tmp_path), "--max-minutes", "0.001"]
    CliRunner().invoke(main, [*arguments, "--set", "learning_rate=0.5"])
    begun = re.findall(r'"folder": "([^"]+)"', (tmp_path / "official" / MANIFEST_NAME).read_text())
    assert not {cell.folder for cell in cells(bench, "small")} & set(begun)
    for name in begun[:2]:
        for file in (tmp_path / CELLS_NAME / name).glob("*"):
            file.unlink()
        if (tmp_path / CELLS_NAME / name).exists():
            (tmp_path / CELLS_NAME / name).rmdir()
        ledger(tmp_path / CELLS_NAME / name, rounds=3, planned=3)
    assert standing(bench, "small", tmp_path).finished == 2
    for name in begun[2:]:
        if not (tmp_path / CELLS_NAME / name).exists():
            ledger(tmp_path / CELLS_NAME / name, rounds=3, planned=3)
    assert standing(bench, "small", tmp_path).state == "complete, with other settings"


@pytest.mark.nightly
def test_one_command_writes_every_page_and_an_index(tmp_path: Path) -> None:
    store = Store(tmp_path / "small")
    folder = store.bench(["FedAvg", "DapperFL"], seeds=(1,), name="table2")
    store.cell("FedAvg", 1, [10, 20, 30])
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str((tmp_path / INDEX_NAME).absolute())
    assert (folder / "report.html").exists()
    page = (tmp_path / INDEX_NAME).read_text()
    assert '<a href="small/table2/report.html">table2</a>' in page
    row = re.search(r"table2</a>.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert ">partly</td>" in row[0]
    assert ">1 of 30</td>" in row[0]
    assert re.search(r"<td>table1</td>.*?not run", page, re.DOTALL)


def test_a_bench_that_needs_a_clone_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {"official", "adapters_pacs"}
    monkeypatch.setattr("fedml_dapper.benches.overview.bench_names", lambda: sorted(shipped))
    monkeypatch.chdir(tmp_path)  # where examples/ is not
    listed = CliRunner().invoke(main, ["bench", "--list"])
    assert listed.exit_code == 0, listed.output
    why = r"bench adapters_pacs, FedAvg: model_args.model: no file examples/adapters/vit.py; .* root of a clone of"
    assert re.search(rf"^adapters_pacs +not here: {why}", listed.stdout, re.MULTILINE)
    assert re.search(r"^official +not run +0 of +9 ", listed.stdout, re.MULTILINE)
    Store(tmp_path / "benches" / "small").bench(["FedAvg", "DapperFL"], seeds=(1,), name="official")
    reported = CliRunner().invoke(main, ["report", "benches"])
    assert reported.exit_code == 0, reported.output
    assert re.search(rf"<td>adapters_pacs</td>.*{why}", (tmp_path / "benches" / INDEX_NAME).read_text())
    alone = CliRunner().invoke(main, ["bench", "adapters_pacs", "--report"])
    assert alone.exit_code == 2
    assert re.fullmatch(rf"fedml-dapper: {why} the repository\n", alone.stderr)


def test_a_folder_of_nothing_is_refused_as_before(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_the_list_says_how_far_each_bench_is(tmp_path: Path) -> None:
    name = cells(load_bench("official"), "small")[0].folder
    ledger(tmp_path / CELLS_NAME / name, rounds=1, planned=1)
    result = CliRunner().invoke(main, ["bench", "--list", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert re.search(r"^official +partly +1 of +9 ", result.stdout, re.MULTILINE)
    declared = len(cells(load_bench("table3"), "small"))
    assert re.search(rf"^table3 +not run +0 of +{declared} ", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "make", [lambda path: path.write_bytes(b"\xff\xfe"), lambda path: path.write_text("{}"), os.mkfifo]
)
def test_a_damaged_manifest_is_one_line(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "official").mkdir()
    make(tmp_path / "official" / MANIFEST_NAME)
    with pytest.raises(DataError, match=r"no bench in .*official: cannot read bench.json; run it once more"):
        load_results(tmp_path / "official")
    if (tmp_path / "official" / MANIFEST_NAME).is_file():
        with pytest.raises(DataError, match=r"cannot read bench.json"):
            standing(load_bench("official"), "small", tmp_path)
