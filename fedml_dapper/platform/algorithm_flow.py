"""Base of the runners that ``FedMLRunner`` takes as ``algorithm_flow``."""

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
from fedml_dapper.platform.program_output import results_shown, rounds_shown
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.tracking import sinks_for


class AlgorithmFlow(ABC):
    """Runner of a program's experiment, in one process or in several.

    Args:
        args: FedML's arguments.
        device: Passed on to the trainer's hooks.
        dataset: FedML's eight-part tuple, from :func:`fedml_dapper.platform.load` or with any loaders of the program.
        model: The network, from :func:`fedml_dapper.platform.load` or any ``nn.Module``; it holds the trained global
            model in the end.
        client_trainer: By default a :class:`DapperClientTrainer`.
        server_aggregator: By default a :class:`DapperServerAggregator`.
        run_dir: Folder for settings, ledger, checkpoints and global model.
        observers: Called at every event.
        resume: Whether to go on with the run in ``run_dir``.
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
        """Set up what :meth:`run` needs."""

    @abstractmethod
    def run(self) -> None:
        """Run all rounds, or this process's part of them."""

    def _open(self) -> tuple[Path, list[RunObserver]]:
        """Make or find the run's folder; return it with all observers of its rounds."""
        self.run_dir = run_dir = open_run_dir(self.experiment, self.run_dir, self._resume)
        shown = rounds_shown(self._args, self.experiment, run_dir)
        return run_dir, [*sinks_for(self.experiment.settings, run_dir), *shown, *self._observers]

    def _close(self, run_dir: Path, weights: Mapping[str, Tensor]) -> None:
        """Put the trained ``weights`` into the program's model, and show the run's results."""
        hand_back(self._args, weights)
        results_shown(self._args, run_dir)
