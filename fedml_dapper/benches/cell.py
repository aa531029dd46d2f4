"""Runs one cell of a bench in a process of its own: ``python -m fedml_dapper.benches.cell FOLDER QUEUE``.

The folder holds the cell's ``settings.yaml``. An interrupted run is resumed. ``QUEUE`` is the number of the
process that started it, with which it ends. FedML is not needed.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME, diagnose
from fedml_dapper.config import load_settings
from fedml_dapper.errors import DapperError
from fedml_dapper.federation import CHECKPOINTS_NAME, SETTINGS_NAME, build_experiment, simulate
from fedml_dapper.files import xz
from fedml_dapper.files.locks import HeldError, locked

LOCK_NAME = "lock"
ALONE = ("workers=1",)
"""Overrides of a cell's settings: cells already run side by side."""
ORPHANED = 3
"""Exit code of a cell whose queue was killed."""
HELD = 4
"""Exit code of a cell that another queue is running."""
_PATIENCE_S = 10.0
"""A killed queue's cell notices only after a moment."""


def run_cell(folder: Path) -> None:
    """Run or finish the cell in ``folder``: its ledger, then the diagnosis of its final model.

    Nothing happens where another queue has finished it since this one began.

    Raises:
        HeldError: Another process is running it.
    """
    with locked(folder / LOCK_NAME, _PATIENCE_S):
        if is_finished(folder):
            return
        experiment = build_experiment(load_settings([folder / SETTINGS_NAME], ALONE))
        server, _ = simulate(experiment, run_dir=folder, resume=True)
        diagnose(experiment, server).save(folder / DIAGNOSIS_NAME)  # its presence means that the cell is finished
        shutil.rmtree(folder / CHECKPOINTS_NAME, ignore_errors=True)


def is_finished(folder: Path) -> bool:
    """Whether the cell in ``folder`` is finished."""
    return xz.find(folder / DIAGNOSIS_NAME) is not None


def _end_with(parent: int) -> None:
    """Exit at once when ``parent`` is gone: a killed queue cannot stop its cells, and another queue may start."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(ORPHANED)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    try:
        run_cell(Path(sys.argv[1]))
    except HeldError:
        sys.exit(HELD)
    except DapperError as error:
        sys.exit(f"fedml-dapper: {error}")
