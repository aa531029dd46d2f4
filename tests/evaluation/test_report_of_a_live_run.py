"""Reports of a run that goes on meanwhile: they read what it writes, and leave it alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedml_dapper.evaluation import write_run_report
from fedml_dapper.evaluation.page import write_page
from fedml_dapper.federation import LEDGER_NAME, read_ledger
from fedml_dapper.federation.run_folder.ledger import count_rounds

from ..conftest import DIGITS
from ..waiting import wait_until

ROUNDS = 50
SMALL = (
    "width=4", "image_size=16", "method=fedavg", "client_num_in_total=4", "client_num_per_round=2",
    "client_share=0.02", f"comm_round={ROUNDS}", "epochs=1", "checkpoint_every=1", "workers=1", "threads=1",
)  # fmt: skip


@pytest.mark.nightly
def test_reports_in_a_loop_let_the_run_end_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    overrides = [word for each in SMALL for word in ("--set", each)]
    command = [sys.executable, "-m", "fedml_dapper.entry", "run", "-c", DIGITS, *overrides, "--output", folder]
    written = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            wait_until(lambda: count_rounds(folder / LEDGER_NAME)[1] > 0 or run.poll() is not None)
            report = write_run_report(folder)
            while run.poll() is None:
                write_page(report, f"report {written}")  # what a report ends with, a hundred times as often
                written += 1
            write_run_report(folder)
            assert run.stdout is not None
            assert run.returncode == 0, run.stdout.read()
        finally:
            run.kill()  # or a failure above would wait for it
    assert written > ROUNDS
    assert len(read_ledger(folder / LEDGER_NAME)[1]) == ROUNDS
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
