"""The example of one's own pictures, run as a newcomer runs it."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from fedml_dapper.cli import main
from fedml_dapper.federation import read_ledger

from .pictures import CLASSES, STYLES, make_pictures

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_pictures" / "experiment.yaml"
COMMAND = [sys.executable, "-c", "from fedml_dapper.cli import main; main(prog_name='fedml-dapper')"]


def fedml_dapper(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOME": str(cwd), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLE.parents[2])}
    environment.pop("DAPPER_DATA", None)
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The example with pictures beside it, in a folder that is not the working directory."""
    file = tmp_path / "study" / "experiment.yaml"
    make_pictures(file.parent / "pictures")
    shutil.copy(EXAMPLE, file)
    return file


@pytest.mark.nightly
def test_own_pictures_train_from_yaml_alone(experiment: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    finished = fedml_dapper("run", "-c", experiment, "--output", output, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    run, rounds = read_ledger(output / "ledger.jsonl")
    assert (run.suite, run.domains, run.classes) == ("pictures", ("chalk", "ink", "paint"), CLASSES)
    assert [(client.domain, client.level, client.num_samples) for client in run.clients] == [
        ("chalk", 1, 72), ("ink", 2, 36), ("ink", 5, 36), ("paint", 3, 72)
    ]  # fmt: skip
    assert len(rounds) == 4
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.best_global_accuracy > 25  # chance is 17
    html = (output / "report.html").read_text()
    tiles = re.findall(r"data:image/jpeg;base64,([A-Za-z0-9+/=]+)", html)
    assert len(tiles) == len(STYLES) * len(CLASSES)
    assert min(len(base64.b64decode(tile)) for tile in tiles) > 500


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``command(...)``: what fedml-dapper says to these words, in this process, where it must end well."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DAPPER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)

    def said(*words: str | Path) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words], prog_name="fedml-dapper")
        assert result.exit_code == 0, result.output
        return result.stdout

    return said


def test_data_check_shows_domains_and_classes(experiment: Path, command: Callable[..., str]) -> None:
    checked = command("data", "check", "-c", experiment)
    assert all(domain in checked for domain in STYLES)
    assert "suite" not in checked
    assert f"6 classes: {', '.join(CLASSES)}" in checked
    by_root = command("data", "check", "--dataset", "folder", "--root", experiment.parent / "pictures")
    assert "circle" in by_root


@pytest.mark.nightly
def test_packed_pictures_give_the_same_run(experiment: Path, tmp_path: Path, command: Callable[..., str]) -> None:
    command("data", "pack", experiment.parent, "pictures", "-o", tmp_path / "packed", "--size", "32")
    results = []
    for place in (experiment.parent / "pictures", tmp_path / "packed"):
        output = tmp_path / f"run_{place.name}"
        changes = [f"--set=data_args.data_cache_dir={place}", "--set=comm_round=1", "--set=epochs=1"]
        command("run", "-c", experiment, *changes, "--output", output)
        results.append(load_file(output / "global_model.safetensors"))
    assert results[0].keys() == results[1].keys()
    assert all(tensor.equal(results[1][name]) for name, tensor in results[0].items())
