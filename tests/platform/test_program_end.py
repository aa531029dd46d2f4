"""How a program ends where something is wrong: by a line where its user can mend it, by a traceback otherwise."""

from __future__ import annotations

import sys

import pytest

from fedml_dapper.errors import ConfigError

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml_dapper.platform.program_end import MISTAKE, end_by_a_line  # it needs fedml


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


def test_others_are_for_who_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    end_by_a_line()
    sys.excepthook(ValueError, ValueError("of the program's own"), None)
    assert "ValueError: of the program's own" in capsys.readouterr().err
