"""``fedml-dapper bench``, typed as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from fedml_dapper.benches.bench_report import REPORT_NAME
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.results import MANIFEST_NAME, read_manifest
from fedml_dapper.cli import main
from fedml_dapper.process.interruption import INTERRUPTED, SAME_COMMAND

FIVE = {"client_num_in_total": 5, "client_num_per_round": 5}


@pytest.fixture
def tiny_bench(tmp_path: Path) -> Path:
    bench = {
        "title": "a tiny bench",
        "source": "none",
        "experiment": "digits_offline.yaml",
        "profiles": {
            "small": {
                "seeds": [1],
                "note": "a round of next to nothing",
                "settings": {
                    "model_args": {"width": 8},
                    "data_args": {"client_share": 0.08, "validation_share": 0.1},
                    "train_args": {"comm_round": 1, "epochs": 1, "batch_size": 16, **FIVE},
                },
            }
        },
        "reference": "FedAvg",
        "variants": [{"label": "FedAvg", "method": "fedavg"}],
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(bench))
    return path


@pytest.mark.nightly
def test_from_nothing_to_a_report_and_not_twice(tiny_bench: Path, tmp_path: Path) -> None:
    command = ["bench", str(tiny_bench), "--output", str(tmp_path / "store"), "--jobs", "1", "--precision", "bf16"]
    first = CliRunner().invoke(main, command)
    assert first.exit_code == 0, first.output
    report = tmp_path / "store" / "tiny" / REPORT_NAME
    assert str(report) in first.stdout.replace("\n", "")
    assert "<strong>small, bf16</strong>: a round of next to nothing" in report.read_text()
    assert "profile small, bf16" in first.stdout
    [ledger] = tmp_path.glob("store/cells/*/ledger.jsonl")
    written = ledger.stat().st_mtime_ns
    report.unlink()
    told = CliRunner().invoke(main, [*command, "--report", "--seeds", "1,2"])
    assert told.exit_code == 0, told.output
    assert report.is_file()
    assert list(tmp_path.glob("store/cells/*/ledger.jsonl")) == [ledger]
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 0, again.output
    assert ledger.stat().st_mtime_ns == written
    assert CliRunner().invoke(main, ["report", str(report.parent)]).exit_code == 0


def test_interrupted_it_says_how_a_bench_goes_on(
    tiny_bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedml_dapper.benches.queue.run_queue", interrupted)
    result = CliRunner().invoke(main, ["bench", str(tiny_bench), "--output", str(tmp_path / "store")])
    assert result.exit_code == INTERRUPTED
    assert result.stderr.splitlines()[-1] == f"fedml-dapper: {SAME_COMMAND}"
    assert "--resume" not in result.output


def test_a_report_of_nothing_says_so(tiny_bench: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", str(tiny_bench), "--output", str(tmp_path / "store"), "--report"])
    assert result.exit_code == 0, result.output
    assert "0 of 1" in result.stdout


def test_a_report_for_another_device_has_none_of_the_processor_s_cells(tiny_bench: Path, tmp_path: Path) -> None:
    command = ["bench", str(tiny_bench), "--output", str(tmp_path / "store"), "--report"]
    assert CliRunner().invoke(main, command).exit_code == 0
    manifest = tmp_path / "store" / "tiny" / MANIFEST_NAME
    [cell] = read_manifest(manifest.parent).cells
    finished = tmp_path / "store" / "cells" / cell.folder
    finished.mkdir(parents=True)
    (finished / DIAGNOSIS_NAME).touch()
    told = CliRunner().invoke(main, [*command, "--device", "cuda"])
    assert told.exit_code == 0, told.output
    assert "note" not in told.stderr
    assert [one.folder for one in read_manifest(manifest.parent).cells] != [cell.folder]


@pytest.mark.parametrize("other", [["--precision", "bf16"], ["--device", "cuda"]])
def test_a_report_does_not_lose_what_was_run_otherwise(tiny_bench: Path, tmp_path: Path, other: list[str]) -> None:
    command = ["bench", str(tiny_bench), "--output", str(tmp_path / "store"), "--report"]
    assert CliRunner().invoke(main, [*command, *other]).exit_code == 0
    manifest = tmp_path / "store" / "tiny" / MANIFEST_NAME
    begun = manifest.read_text()
    [cell] = read_manifest(manifest.parent).cells
    finished = tmp_path / "store" / "cells" / cell.folder
    finished.mkdir(parents=True)
    (finished / DIAGNOSIS_NAME).touch()
    plain = CliRunner().invoke(main, command)
    assert plain.exit_code == 0, plain.output
    assert "note: cells that were run with other settings, precision or rows are shown" in plain.stderr
    assert manifest.read_text() == begun
    asked = CliRunner().invoke(main, [*command, "--seeds", "1"])
    assert asked.exit_code == 0, asked.output
    assert manifest.read_text() != begun


@pytest.mark.nightly
def test_a_failed_cell_is_named_and_the_exit_code_says_so(tiny_bench: Path, tmp_path: Path) -> None:
    nowhere = [f"--set=data_cache_dir={tmp_path / 'nowhere'}", "--set=dataset=office_caltech10"]
    result = CliRunner().invoke(main, ["bench", str(tiny_bench), "--output", str(tmp_path / "store"), *nowhere])
    assert result.exit_code == 1
    assert "FedAvg, seed 1 failed" in result.stderr
    assert "log.txt" in result.stderr


@pytest.mark.nightly
def test_list_names_every_bench() -> None:
    result = CliRunner().invoke(main, ["bench", "--list"])
    assert result.exit_code == 0
    assert "table2" in result.stdout
    assert "fedcmd_table9" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["tabel2"], "did you mean `table2`"),
        (["table2", "--seeds", "one"], "--seeds one: expected whole numbers"),
        (["table2", "--seeds", "1,1"], "`1` is there twice"),
        (["table2", "--seeds", ""], "--seeds : expected whole numbers"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", *options, "--output", str(tmp_path / "store")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    command = ["bench", "table2", "--device", "cuda", "--output", str(tmp_path / "store")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "torch finds no GPU on this machine" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists()
