"""Everything that is kept of a run while it goes: observers told, global model saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml_dapper.federation.checkpoint import save_weights
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.federation.run_dir import CHECKPOINT_NAME
from fedml_dapper.federation.server import Server


class RunJournal:
    """Tells observers of a run's course and writes checkpoints below ``run_dir``, if there is one."""

    def __init__(
        self, experiment: Experiment, server: Server, observers: Sequence[RunObserver], run_dir: Path | None = None
    ) -> None:
        self._experiment = experiment
        self._server = server
        self._observers = observers
        self._run_dir = run_dir

    def started(self) -> None:
        record = self._experiment.record()
        for observer in self._observers:
            observer.run_started(record)

    def round_opened(self, client_ids: Sequence[int]) -> None:
        for observer in self._observers:
            observer.round_started(self._server.state.round + 1, client_ids)

    def round_closed(self, record: RoundRecord) -> None:
        settings = self._experiment.settings
        is_last = record.round == settings.train_args.comm_round
        if self._run_dir is not None and (is_last or record.round % settings.dapper_args.checkpoint_every == 0):
            save_weights(self._server.state.weights, self._run_dir / CHECKPOINT_NAME, record.round)
        for observer in self._observers:
            observer.round_finished(record)

    def finished(self) -> None:
        """Call also when the run was cut short."""
        for observer in self._observers:
            observer.run_finished()
