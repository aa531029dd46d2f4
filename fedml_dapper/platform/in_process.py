"""Runner of a simulation in one process, with the custom trainer and aggregator that FedML's own simulator ignores."""

from __future__ import annotations

from fedml_dapper.federation import run_rounds
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.algorithm_flow import AlgorithmFlow
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.server_aggregator import DapperServerAggregator


class InProcessRunner(AlgorithmFlow):
    """Runner of all clients in this process and its workers; hand it to ``FedMLRunner`` as ``algorithm_flow``.

    It calls the same trainer hooks as FedML's cross-silo client. A trainer of the program's own class may remember what
    it sees of clients, so it trains all of them in this process, one after another, unless ``device_args.workers``
    names a number above 1. Uploads are folded in one by one and dropped, so memory does not grow with the number of
    clients. For the arguments see :class:`AlgorithmFlow`; without ``run_dir`` a new folder is made below
    ``dapper_args.output_dir``.
    """

    def _prepare(self) -> None:
        self._train_data = self._dataset[5]
        self._test_data = self._dataset[6]
        self._num_samples = self._dataset[4]
        self._trainer = self._client_trainer or DapperClientTrainer(self._model, self._args)
        self._aggregator = self._server_aggregator or DapperServerAggregator(self._model, self._args)
        if type(self._trainer) is not DapperClientTrainer and self.experiment.settings.device_args.workers == "auto":
            self.experiment = self.experiment.one_by_one("a trainer of the program's own may remember them")

    def run(self) -> None:
        """Run all rounds."""
        run_dir, observers = self._open()
        server = self._aggregator.server
        run_rounds(self.experiment, server, self._trainer.clients, self._update, observers, run_dir, self._resume)
        self._close(run_dir, server.whole_model())

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
