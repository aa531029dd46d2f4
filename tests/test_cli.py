from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedml_dapper.cli import main
from fedml_dapper.config import Settings
from fedml_dapper.federation import LedgerWriter, build_experiment, read_ledger, simulate

from .conftest import DIGITS
from .holding import held_before
from .waiting import wait_until

pytestmark = pytest.mark.usefixtures("few_test_images")

SettingsFactory = Callable[..., Settings]
SECONDS = re.compile(rb'"seconds":(\{[^}]*\}|[0-9.e-]+)')
COMMAND = [sys.executable, "-c", "from fedml_dapper.cli import main; main(prog_name='fedml-dapper')"]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="fedml-dapper")


@pytest.fixture
def experiment(tmp_path: Path, tiny_settings: SettingsFactory) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(
        tiny_settings("client_num_in_total=4", "client_num_per_round=4", "epochs=1", "client_share=0.03").as_yaml()
    )
    return file


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


@pytest.mark.nightly
def test_a_run_whose_ledger_is_gone_is_begun_anew_when_told_to(experiment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    base = ("run", "-c", experiment, "--set", "comm_round=1", "--output", folder)
    assert call(*base).exit_code == 0
    (folder / "ledger.jsonl").unlink()
    refused = call(*base, "--resume")
    assert refused.exit_code == 2
    assert "has checkpoints, but no ledger.jsonl" in refused.stderr
    assert call(*base, "--resume", "--restart").exit_code == 2
    assert call(*base, "--restart").exit_code == 0
    assert len(read_ledger(folder / "ledger.jsonl")[1]) == 1


@pytest.mark.long
def test_run_as_json_prints_one_document_and_writes_everything(
    experiment: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "run"
    finished = subprocess.run(
        [*COMMAND, "run", "-c", experiment, "--json", "--profile", "--output", folder],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    document = json.loads(finished.stdout)
    _, rounds = read_ledger(folder / "ledger.jsonl")
    scores = rounds[-1].scores
    assert scores is not None
    assert document["rounds"] == 2
    assert document["global_accuracy"]["last"] == scores.global_accuracy
    assert document["global_accuracy"]["best"] == scores.best_global_accuracy
    assert {name: value["best"] for name, value in document["domain_accuracy"].items()} == scores.best_domain_accuracy
    assert document["seconds"] > 0
    assert Path(document["ledger"]) == folder / "ledger.jsonl"
    assert Path(document["report"]).is_file()
    assert {file.name for file in folder.iterdir()} == {
        "settings.yaml", "ledger.jsonl", "checkpoints", "global_model.safetensors", "report.html", "profile.json"
    }  # fmt: skip
    assert "round 2/2" in finished.stderr
    assert finished.stderr.index("4 clients") < finished.stderr.index("round 1/2")
    lines = finished.stderr.splitlines()
    assert any(line.endswith(str(folder / "settings.yaml")) for line in lines)
    assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []
    assert "learning_rate_decay" not in finished.stderr  # ninety lines of settings would scroll all else away


@pytest.mark.nightly
@pytest.mark.usefixtures("all_test_images")
def test_an_interrupt_between_checkpoints_costs_no_finished_round(
    tmp_path: Path, tiny_settings: SettingsFactory, environment: dict[str, str]
) -> None:
    rounds = 5
    settings = tiny_settings(
        f"comm_round={rounds}", "epochs=1", "checkpoint_every=100", "client_share=0.03", "image_size=16"
    )
    experiment, folder, whole = tmp_path / "tiny.yaml", tmp_path / "run", tmp_path / "whole"
    experiment.write_text(settings.as_yaml())
    heeding_interrupts = ["env", "--default-signal=INT"]  # a job in the background would ignore them
    run = ["run", "-c", experiment, "--output", folder]
    held = f"{held_before(rounds)}\n{COMMAND[-1]}"
    process = subprocess.Popen(
        [*heeding_interrupts, *COMMAND[:-1], held, *run],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ledger = folder / "ledger.jsonl"
    wait_until(lambda: process.poll() is not None or (ledger.exists() and ledger.read_bytes().count(b"\n") > 2))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    finished = len(read_ledger(folder / "ledger.jsonl")[1])
    assert 2 <= finished < rounds
    assert f"Stopped after {finished} finished rounds" in stdout
    assert "report.html" in stdout
    assert f"The same command with --output {folder} --resume goes on from there." in stdout.replace("\n", " ")
    assert [path.name for path in folder.glob("checkpoints/*")] == [f"round_{finished:05}.safetensors"]

    resumed = subprocess.run(
        [*COMMAND, *run, "--resume", "--verbose"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert "learning_rate_decay: 1.0" in resumed.stdout
    assert f"going on after round {finished}/{rounds}" in resumed.stderr
    shown = re.findall(rf"^round (\d+)/{rounds}", resumed.stderr, re.MULTILINE)
    assert shown == [str(n) for n in range(finished + 1, rounds + 1)]
    simulate(build_experiment(settings), run_dir=whole)
    for name in ("ledger.jsonl", "global_model.safetensors"):
        ours, theirs = ((place / name).read_bytes() for place in (folder, whole))
        assert SECONDS.sub(b"", ours) == SECONDS.sub(b"", theirs), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train_args.learnig_rate=0.1"], "did you mean `learning_rate`?"),
        (["comm_round=ten"], "`comm_round` in train_args is 'ten'"),
        (["dataset=office_caltech10", "data_cache_dir=nowhere"], "nowhere"),
        (["client_num_in_total=3", "client_num_per_round=3"], "domain"),
        (["ratios=[0.99]"], "smallest share of this scope"),
        (["client_share=0.0015"], "gets one training sample"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    experiment: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = call("run", "-c", experiment, *(part for override in overrides for part in ("--set", override)))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before  # nothing half-written


def test_missing_config_file(tmp_path: Path) -> None:
    result = call("run", "-c", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert str(tmp_path / "none.yaml") in result.stderr


def test_footprint_as_json() -> None:
    result = call("footprint", "--model", "resnet10", "--input", "32", "--ratio-of", "channels", "--json")
    rows = json.loads(result.stdout)
    assert [row["params"] for row in rows] == [4_903_242, 3_961_674, 3_014_922, 2_071_050, 1_124_298]
    assert [row["macs"] for row in rows] == [254_170_112, 204_722_624, 155_607_392, 107_120_288, 58_005_056]
    assert set(rows[0]) == {
        "level", "ratio", "params", "macs", "bytes_up", "bytes_down", "memory_bytes", "round_macs"
    }  # fmt: skip
    assert len({row["memory_bytes"] for row in rows}) == 1  # the first epoch is dense
    assert [round(row["round_macs"] / (3 * rows[0]["macs"]), 2) for row in rows] == [5, 4.22, 3.45, 2.69, 1.91]
    assert rows[4]["bytes_up"] < 0.25 * rows[4]["bytes_down"]


OWN_SERIES = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def load():
    part = TensorDataset(torch.randn(8, 2, 12), torch.arange(8) % 2)
    return {"day": (part, part)}

def net(num_classes):
    return nn.Sequential(
        nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, num_classes)
    )
"""


def test_footprint_of_an_experiment_on_any_network_and_input(tmp_path: Path) -> None:
    (tmp_path / "series.py").write_text(OWN_SERIES)
    file = tmp_path / "series.yaml"
    file.write_text(
        "data_args: {dataset: series.py:load}\nmodel_args: {model: series.py:net}\n"
        "train_args: {client_num_in_total: 1, client_num_per_round: 1, batch_size: 4}\n"
        "dapper_args: {method: heterofl, levels: {ratios: [0, 0.5]}}\n"
    )
    result = call("footprint", "-c", file, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert rows[0]["params"] == 2 * 6 * 3 + 6 + 6 * 4 * 3 + 4 + 32 * 2 + 2
    shown = CliRunner().invoke(main, ["footprint", "-c", str(file)], env={"COLUMNS": "160"})
    assert "inputs 2x12" in shown.stdout
    assert "params (k)" in shown.stdout
    assert "0.184" in shown.stdout
    refused = call("footprint", "-c", file, "--input", "64")
    assert refused.exit_code == 2
    assert "--input: with --config the experiment file says it" in refused.stderr
    assert "give an experiment file by --config" in call("footprint").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-c", str(DIGITS), "--output", ""),
        ("run", "-c", ""),
        ("export", "", "-o", "out"),
        ("export", "run", "-o", ""),
        ("report", ""),
        ("compare", "one", "two", "-o", ""),
        ("silos", "list", ""),
        ("data", "check", "--root", ""),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_no_working_directory(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == 2
    assert "the name of a file or folder is empty" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_footprint_as_a_table_and_its_errors() -> None:
    assert "resnet18, width 64" in call("footprint", "--model", "resnet18").stdout
    assert call("footprint", "--model", "resnet18", "--ratios", "0,1").exit_code == 2
    assert "smallest share" in call("footprint", "--model", "resnet10", "--ratios", "0.99").stderr


def test_data_check_finds_the_embedded_suite_and_reports_what_is_missing(tmp_path: Path) -> None:
    rows = json.loads(call("data", "check", "--dataset", "digits_offline", "--json").stdout)
    assert [row["domain"] for row in rows] == ["scans", "blended", "fonts", "segments"]
    missing = call("data", "check", "--dataset", "office_caltech10", "--root", tmp_path)
    assert missing.exit_code == 2
    assert "data/README.md" in missing.stderr


def test_data_check_merges_files_and_takes_shipped_ones_as_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("above.yaml").write_text("data_args: {data_cache_dir: mine}\n")
    missing = call("data", "check", "-c", "config/office_caltech.yaml", "-c", "above.yaml")
    assert missing.exit_code == 2
    assert "config/office_caltech.yaml: no such file here, taking the shipped one" in missing.stderr
    assert f"office_caltech10 is incomplete below {tmp_path / 'mine'}" in missing.stderr


def test_data_check_shows_names_as_they_are(tmp_path: Path) -> None:
    for label in ("[red]", "#1"):
        (tmp_path / "[old] pictures" / "[bold]" / label).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "[old] pictures" / "[bold]" / label / f"{index}.png")
    shown = call("data", "check", "--dataset", "folder", "--root", tmp_path / "[old] pictures")
    assert shown.exit_code == 0, shown.output
    for name in ("[old] pictures", "[bold]", "#1, [red]"):
        assert name in shown.stdout


@pytest.mark.nightly
def test_report_is_written_again_from_the_ledger_alone(tmp_path: Path, tiny_settings: SettingsFactory) -> None:
    simulate(
        build_experiment(tiny_settings("epochs=1", "client_share=0.03")), [LedgerWriter(tmp_path / "ledger.jsonl")]
    )
    result = call("report", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").read_text().startswith("<!")
    assert call("report", tmp_path / "nowhere").exit_code == 2


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("dataset", "my_pictures", "my_pictures"),
        ("data_cache_dir", "/nowhere", "/nowhere"),
        ("of_a_later_version", 1, "of_a_later_version"),
    ],
)
def test_report_says_what_it_leaves_out_where_the_data_are_not_here(
    tmp_path: Path, tiny_settings: SettingsFactory, caplog: pytest.LogCaptureFixture, key: str, value: object,
    reason: str,
) -> None:  # fmt: skip
    record = build_experiment(tiny_settings()).record()
    data_args = record.settings["data_args"] | {"dataset": "office_caltech10", key: value}
    settings = record.settings | {"data_args": data_args}
    (tmp_path / "ledger.jsonl").write_text(f"{record.model_copy(update={'settings': settings}).model_dump_json()}\n")
    finished = call("report", tmp_path)
    assert (finished.exit_code, finished.stdout) == (0, f"{tmp_path / 'report.html'}\n"), finished.stderr
    [line] = caplog.messages
    assert line.startswith("the report goes without sample images: ")
    assert reason in line
    assert "What the images look like" not in (tmp_path / "report.html").read_text()


@pytest.mark.nightly
def test_what_a_report_leaves_out_is_a_line_on_stderr(
    tmp_path: Path, tiny_settings: SettingsFactory, environment: dict[str, str]
) -> None:
    record = build_experiment(tiny_settings()).record()
    data_args = record.settings["data_args"] | {"dataset": "my_pictures"}
    settings = record.settings | {"data_args": data_args}
    (tmp_path / "ledger.jsonl").write_text(f"{record.model_copy(update={'settings': settings}).model_dump_json()}\n")
    finished = subprocess.run(
        [*COMMAND, "report", tmp_path], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    [line] = finished.stderr.splitlines()
    assert line.startswith("the report goes without sample images: ")
    assert "my_pictures" in line
