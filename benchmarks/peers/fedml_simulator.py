"""FedML's own simulator in one process (``backend: sp``), with its own trainer: one client after another."""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

import torch
from fedml.core.mlops import MLOpsStore
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.work import CLASSES, Diary, Work, given, network_of_process


class _Trainer(ModelTrainerCLS):  # type: ignore[misc]  # FedML has no types
    """FedML's trainer, which hands out a copy of the first weights.

    FedML's hands out the network's own tensors, in which it then trains. So in round 1, on a CPU, each client would go
    on from the client before it, which is other work.
    """

    _asked = False

    def get_model_params(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = super().get_model_params()
        if self._asked:
            return found
        self._asked = True
        return copy.deepcopy(found)


class _Simulator(FedAvgAPI):  # type: ignore[misc]  # FedML has no types
    """FedML's simulator, which says when a round ends."""

    def __init__(self, diary: Diary, args: Namespace, device: torch.device, dataset: list[Any], model: nn.Module):
        self._diary = diary
        super().__init__(args, device, dataset, model)

    def _setup_clients(self, samples: Any, training: Any, test: Any, _trainer: Any) -> None:
        self.model_trainer = _Trainer(self.model, self.args)
        super()._setup_clients(samples, training, test, self.model_trainer)

    def _local_test_on_all_clients(self, round_idx: int) -> None:
        """Test nobody."""

    def _aggregate(self, w_locals: Any) -> dict[str, Tensor]:
        mean: dict[str, Tensor] = super()._aggregate(w_locals)
        self._diary.round_ended()
        return mean


def dataset(work: Work) -> list[Any]:
    """The eight parts of which FedML's data sets consist; nobody tests."""
    loaders = {
        client: DataLoader(TensorDataset(*work.pictures(client)), batch_size=work.batch, shuffle=True)
        for client in range(work.clients)
    }
    samples = dict.fromkeys(loaders, work.images)
    return [sum(samples.values()), 0, None, None, samples, loaders, dict.fromkeys(loaders), CLASSES]


def main() -> None:
    work, folder = given()
    args = Namespace(
        dataset="pictures",
        client_optimizer="sgd",
        learning_rate=work.rate,
        epochs=work.epochs,
        batch_size=work.batch,
        comm_round=work.rounds,
        client_num_in_total=work.clients,
        client_num_per_round=work.clients,
        frequency_of_the_test=work.rounds + 1,
        enable_wandb=False,
        using_mlops=False,
        run_id="0",
        rank=0,
    )
    network = network_of_process(work, folder)
    torch.set_num_threads(work.processes)  # one client at a time has the cores that several have elsewhere
    diary = Diary(folder)
    MLOpsStore.mlops_args = args  # else FedML reads a file that the command line names
    _Simulator(diary, args, torch.device(work.device), dataset(work), network).train()
    diary.keep(network)


if __name__ == "__main__":
    main()
