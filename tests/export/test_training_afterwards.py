"""A process that has exported a model trains another one, with clients side by side."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedml_dapper.federation.run_folder.finished import FinishedRun

from .conftest import ROOT

PROGRAM = """
import sys
from pathlib import Path
from fedml_dapper.export import Exporter, choose
from tests.export.conftest import finish, open_finished

built_in, folder, name = sys.argv[1:]
run = open_finished(Path(built_in))
Exporter(run, [name]).export(choose(run, 3), Path(folder) / "out")
for number, workers in enumerate((2, 1, 2)):
    finish(Path(folder) / f"run{number}", f"workers={workers}", config=Path(folder) / "experiment.yaml")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", [pytest.param("torch-export", marks=pytest.mark.nightly), "onnx"])
def test_clients_train_side_by_side_after_an_export(finished: FinishedRun, tmp_path: Path, name: str) -> None:
    for file in ("my_model.py", "experiment.yaml"):
        shutil.copy(ROOT / "examples" / "own_model" / file, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, finished.folder, tmp_path, name],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
