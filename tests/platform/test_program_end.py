"""How a program ends where something is wrong: by a line where its user can mend it, by a traceback otherwise."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml_dapper.platform.program_end import MISTAKE, end_by_a_line  # it needs fedml
from fedml_dapper.platform.program_output import results_shown


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.excepthook", sys.__excepthook__)
    monkeypatch.setattr("sys.argv", ["/some/where/program.py"])


def test_our_errors_end_it_by_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    end_by_a_line()
    end_by_a_line()
    error = ConfigError(f"experiment.yaml: something is wrong with {'x' * 1000}")
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(ConfigError, error, None)
    assert ended.value.code == MISTAKE
    said = capsys.readouterr().err
    assert said.startswith("program.py: experiment.yaml: something is wrong with xxx")
    assert len(said.splitlines()) == 1
    assert len(said) < 300


def test_ctrl_c_ends_it_by_a_line_that_says_how_it_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\nfrom fedml_dapper.platform.program_end import end_by_a_line\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # which a program in the background lacks\n"
        "end_by_a_line()\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert ended.stderr.startswith(
        "program.py: interrupted; its run goes on where it was if its runner is given run_dir"
    )
    assert len(ended.stderr.splitlines()) == 1


def test_others_are_for_who_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    end_by_a_line()
    sys.excepthook(ValueError, ValueError("of the program's own"), None)
    assert "ValueError: of the program's own" in capsys.readouterr().err


@pytest.mark.long
def test_a_report_that_cannot_be_written_takes_nothing_from_it(
    tiny_settings: Callable[..., Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, args = tmp_path / "run", Namespace(dapper_is_shown=True)
    simulate(build_experiment(tiny_settings("comm_round=1", "epochs=1", "client_share=0.03")), run_dir=run_dir)
    (run_dir / "report.html").mkdir()
    ledger = run_dir / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"model_is_finite":true', '"model_is_finite":false'))
    results_shown(args, run_dir)
    said = capsys.readouterr().err
    assert "The report was not written: " in said
    assert "global (mean)" in said
    assert "In round 1, the global model became one that is not finite" in said
