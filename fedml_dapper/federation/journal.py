"""Everything that is kept of a run while it goes: ledger, checkpoints and global model; observers are told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml_dapper.federation.checkpoint import save_weights
from fedml_dapper.federation.checkpoint_folder import CheckpointFolder
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.ledger import LedgerWriter
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.federation.resume import resume
from fedml_dapper.federation.run_dir import CHECKPOINTS_NAME, LEDGER_NAME, MODEL_NAME
from fedml_dapper.federation.server import Server


class RunJournal:
    """Tells observers of a run's course and writes it down below ``run_dir``, if there is one.

    A checkpoint follows its round's line in the ledger, so that a run can always go on from it; the global model comes
    last. Observers hear of a round that is on the disk.
    """

    def __init__(
        self, experiment: Experiment, server: Server, observers: Sequence[RunObserver], run_dir: Path | None = None,
        resume: bool = False,
    ) -> None:  # fmt: skip
        self._experiment = experiment
        self._server = server
        self._observers = observers
        self._run_dir = run_dir
        self._resume = resume

    def started(self) -> None:
        """Open everything; to resume, put the server where it was."""
        ...
