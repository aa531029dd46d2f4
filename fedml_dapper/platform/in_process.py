"""Runner of a simulation in one process, with the custom trainer and aggregator that FedML's own simulator ignores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from torch import nn

from fedml_dapper.federation import RunObserver, open_run_dir, run_rounds
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import FedMLDataset, fedml_dataset
from fedml_dapper.platform.program import experiment_of, hand_back, note_data, note_model
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.shown import results_shown, rounds_shown
from fedml_dapper.platform.tracking import sinks_for


class InProcessRunner:
    """Runner of all clients in this process and its workers; hand it to ``FedMLRunner`` as ``algorithm_flow``.

    It calls the same trainer hooks as FedML's cross-silo client. A trainer of the program's own class may remember what
    it sees of clients, so it trains all of them in this process, one after another, unless ``device_args.workers``
    names a number above 1. Uploads are folded in one by one and dropped, so memory does not grow with the number of
    clients.

    Args:
        args: FedML's arguments.
        device: Passed on to the trainer's hooks.
        dataset: FedML's eight-part tuple, from :func:`fedml_dapper.platform.load` or with any loaders of the program.
        model: The network, from :func:`fedml_dapper.platform.load` or any ``nn.Module``; it holds the trained global
            model in the end.
        client_trainer: By default a :class:`DapperClientTrainer`.
        server_aggregator: By default a :class:`DapperServerAggregator`.
        run_dir: Folder for settings, ledger, checkpoints and global model; by default a new one below
            ``dapper_args.output_dir``.
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
        dataset = fedml_dataset(self.experiment.division, self.experiment.num_classes)
        self._train_data = dataset[5]
        self._test_data = dataset[6]
        self._num_samples = dataset[4]
        self._trainer = client_trainer or DapperClientTrainer(model, args)
        self._aggregator = server_aggregator or DapperServerAggregator(model, args)
        if type(self._trainer) is not DapperClientTrainer and self.experiment.settings.device_args.workers == "auto":
            self.experiment = self.experiment.one_by_one("a trainer of the program's own may remember them")
        self._observers = list(observers)
        self._resume = resume

    def run(self) -> None:
        """Run all rounds."""
        self.run_dir = open_run_dir(self.experiment, self.run_dir, self._resume)
        shown = rounds_shown(self._args, self.experiment, self.run_dir)
        observers = [*sinks_for(self.experiment.settings, self.run_dir), *shown, *self._observers]
        server = self._aggregator.server
        run_rounds(self.experiment, server, self._trainer.clients, self._update, observers, self.run_dir, self._resume)
        hand_back(self._args, server.state.weights)
        results_shown(self._args, self.run_dir)

    def _update(self, downlink: Downlink) -> Upload:
        trainer = self._trainer
        client_id = downlink.client_id
        data = self._train_data[client_id]
        trainer.set_id(client_id)
        trainer.update_dataset(data, self._test_data[client_id], self._num_samples[client_id])
        trainer.set_model_params(downlink)
        trainer.on_before_local_training(data, self._device, self._args)
        trainer.train(data, self._device, self._args)
        trainer.on_after_local_training(data, self._device, self._args)
        return trainer.get_model_params()
