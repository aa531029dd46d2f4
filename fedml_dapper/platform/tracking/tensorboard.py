"""TensorBoard event files in the run's folder."""

from __future__ import annotations

from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, RunObserver, metrics_of

FOLDER = "tensorboard"


class TensorBoardSink(RunObserver):
    """One scalar per metric and round in ``<run>/tensorboard``; ``tensorboard --logdir runs`` shows all runs."""

    def __init__(self, run_dir: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # an extra, and slow to import
        except ImportError as error:
            raise ConfigError("tensorboard is not installed; pip install 'fedml-dapper[tracking]'") from error
        self._writer = SummaryWriter(run_dir / FOLDER)

    def round_finished(self, record: RoundRecord) -> None:
        for name, value in metrics_of(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()  # an interrupted run keeps its finished rounds

    def run_finished(self) -> None:
        self._writer.close()
