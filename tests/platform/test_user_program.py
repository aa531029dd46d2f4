"""The program of docs/fedml_program.md for FedML users, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.federation import build_experiment, read_ledger, simulate

from .conftest import OfflineProcess

PAGE = Path(__file__).parents[2] / "docs" / "fedml_program.md"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "my_program.py"
    file.write_text(code)
    return file


def test_program_runs_offline_and_trains_what_the_core_trains(
    offline: OfflineProcess, program: Path, tiny_file: Path
) -> None:
    finished = offline.run(program, "--cf", tiny_file)
    assert finished.returncode == 0, finished.stderr
    assert offline.network_attempts() == ""
    [ledger] = offline.folder.glob("digits_offline-dapperfl-*/ledger.jsonl")
    run, rounds = read_ledger(ledger)
    experiment = build_experiment(load_settings([tiny_file]))
    assert run == experiment.record()
    _, core_rounds = simulate(experiment)
    assert [record.scores for record in rounds] == [record.scores for record in core_rounds]
    assert "'global':" in finished.stdout


def test_mistakes_stop_the_program_before_fedml_starts(offline: OfflineProcess, program: Path, tiny_file: Path) -> None:
    tiny_file.write_text(tiny_file.read_text().replace("learning_rate", "learnig_rate"))
    finished = offline.run(program, "--cf", tiny_file)
    assert finished.returncode != 0
    assert "unknown key `learnig_rate` in train_args; did you mean `learning_rate`?" in finished.stderr


def test_changed_args_are_honoured_and_checked(offline: OfflineProcess, program: Path, tiny_file: Path) -> None:
    changed = program.read_text().replace("    device =", "    args.comm_round = {}\n    device =")
    program.write_text(changed.format(1))
    assert offline.run(program, "--cf", tiny_file).returncode == 0
    [ledger] = offline.folder.glob("digits_offline-dapperfl-*/ledger.jsonl")
    assert len(read_ledger(ledger)[1]) == 1
    program.write_text(changed.format(0))
    finished = offline.run(program, "--cf", tiny_file)
    assert "as changed by the program: `comm_round` in train_args is 0" in finished.stderr


def test_starting_costs_no_seconds_without_a_network(offline: OfflineProcess, tiny_file: Path) -> None:
    script = offline.folder / "start.py"
    script.write_text(
        "import time\nfrom fedml_dapper import platform\nslept = [0.0]\ntime.sleep = slept.append\n"
        "platform.init()\nprint(sum(slept))\n"
    )
    finished = offline.run(script, "--cf", tiny_file)
    assert finished.returncode == 0, finished.stderr
    assert float(finished.stdout.split()[-1]) < 2.0  # FedML's own look-up sleeps at least 2.5 s
    assert offline.network_attempts() == ""
