"""What ``FedMLRunner`` takes as ``algorithm_flow``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from torch import Tensor, nn

from fedml_dapper.federation import RunObserver, open_run_dir
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import FedMLDataset, fedml_dataset
from fedml_dapper.platform.program import experiment_of, hand_back, note_data, note_model
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.shown import results_shown, rounds_shown
from fedml_dapper.platform.tracking import sinks_for


class AlgorithmFlow(ABC):
    """A program's experiment, to be run by one process or by several.

    ``dataset`` and ``model`` are what :func:`fedml_dapper.platform.load` gives, or the program's own: FedML's
    eight-part tuple with any loaders, and any ``nn.Module``, which holds the trained global model in the end. Settings,
    ledger, checkpoints and global model are written into ``run_dir``; with ``resume`` the run that is there goes on.
    """

    def __init__(
        self,
        args: Arguments,
        device: Any,
        dataset: FedMLDataset | Sequence[Any],
        model: nn.Module,
        client_trainer: DapperClientTrainer | None = None,
        server_aggregator: DapperServerAggregator | None = None,
        run_dir: Path | str | None = None,
        observers: Sequence[RunObserver] = (),
        resume: bool = False,
    ) -> None:
        note_model(args, model)
        note_data(args, dataset)
        self.experiment = experiment_of(args)
        self.run_dir = run_dir
        self._args = args
        self._device = device
        self._model = model
        self._dataset = fedml_dataset(self.experiment.division, self.experiment.num_classes)
        self._client_trainer = client_trainer
        self._server_aggregator = server_aggregator
        self._observers = list(observers)
        self._resume = resume
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what :meth:`run` works with."""

    @abstractmethod
    def run(self) -> None:
        """Run all rounds, or this process's part of them."""

    def _open(self) -> tuple[Path, list[RunObserver]]:
        """The run's folder, made or found, and who hears of its rounds."""
        self.run_dir = run_dir = open_run_dir(self.experiment, self.run_dir, self._resume)
        shown = rounds_shown(self._args, self.experiment, run_dir)
        return run_dir, [*sinks_for(self.experiment.settings, run_dir), *shown, *self._observers]

    def _close(self, run_dir: Path, weights: Mapping[str, Tensor]) -> None:
        """Hand the trained ``weights`` back to the program, and show what the run came to."""
        hand_back(self._args, weights)
        results_shown(self._args, run_dir)
