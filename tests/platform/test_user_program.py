"""The program of docs/fedml_program.md for FedML users, run as it stands there."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, read_ledger, simulate

from .conftest import OfflineProcess

PAGE = Path(__file__).parents[2] / "docs" / "fedml_program.md"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "my_program.py"
    file.write_text(code)
    return file


@pytest.mark.nightly
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


@pytest.fixture
def run_here(program: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``run_here(text)``: a program of this text, in this process."""
    pytest.importorskip("fedml", reason="fedml is not installed")
    monkeypatch.setenv("HOME", str(program.parent))
    monkeypatch.chdir(program.parent)
    monkeypatch.setattr("sys.argv", [str(program), "--cf", str(tiny_file)])

    def run(text: str) -> None:
        program.write_text(text)
        runpy.run_path(str(program), run_name="__main__")

    return run


def test_mistakes_stop_the_program_before_fedml_starts(
    run_here: Callable[[str], None], program: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_file.write_text(tiny_file.read_text().replace("learning_rate", "learnig_rate"))
    started: list[object] = []
    monkeypatch.setattr("fedml.init", lambda *args, **rest: started.append(args))
    with pytest.raises(ConfigError, match="unknown key `learnig_rate` in train_args; did you mean `learning_rate`"):
        run_here(program.read_text())
    assert started == []


@pytest.mark.long
def test_changed_args_are_honoured_and_checked(run_here: Callable[[str], None], program: Path, tmp_path: Path) -> None:
    changed = program.read_text().replace("    device =", "    args.comm_round = {}\n    device =")
    run_here(changed.format(1))
    [ledger] = tmp_path.glob("digits_offline-dapperfl-*/ledger.jsonl")
    assert len(read_ledger(ledger)[1]) == 1
    with pytest.raises(ConfigError, match="as changed by the program: `comm_round` in train_args is 0"):
        run_here(changed.format(0))


def test_starting_waits_for_no_platform(run_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    run_here("from fedml_dapper import platform\nplatform.init()\n")
    assert sum(slept) < 2.0  # FedML's own look-up sleeps at least 2.5 s
