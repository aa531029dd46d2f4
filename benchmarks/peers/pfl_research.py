"""pfl-research: its ``SimulatedBackend`` in several processes, as torchrun starts them, each with its own clients."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.work import Diary, ServerSGD, Work, given, network_of_process


class _Learner(nn.Module):
    """The network with the two functions that pfl-research asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, pictures: Tensor, classes: Tensor) -> Tensor:
        self.network.train()
        return F.cross_entropy(self.network(pictures), classes)

    @torch.no_grad()
    def metrics(self, pictures: Tensor, classes: Tensor) -> dict[str, Any]:
        self.network.eval()
        loss = F.cross_entropy(self.network(pictures), classes, reduction="sum")
        return {"loss": Weighted(loss.item(), len(classes))}


class _Noting(TrainingProcessCallback):  # type: ignore[misc]  # pfl is not in the environment that is checked
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self._diary.round_ended()
        return False, Metrics()


def clients_of(work: Work) -> FederatedDataset:
    """All clients, who come in turns, so that each trains once a round."""
    known = [work.pictures(client) for client in range(work.clients)]

    def of(client: int) -> PyTorchTensorDataset:
        order = torch.randperm(work.images)
        return PyTorchTensorDataset(tuple(tensor[order] for tensor in known[client]), user_id=str(client))

    return FederatedDataset(of, MinimizeReuseUserSampler(list(range(work.clients))))


def main() -> None:
    work, folder = given()
    diary = Diary(folder)
    if work.device == "cpu":
        os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # else each process takes a GPU of its own
    np.random.seed(0)  # every process has to draw the same
    clients = clients_of(work)
    learner = _Learner(network_of_process(work, folder))
    is_first = pytorch_ops.distributed.global_rank == 0
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,  # it evaluates in round 1 alone, which does not count
            train_cohort_size=work.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(clients, clients),
        PyTorchModel(learner, torch.optim.SGD, ServerSGD(learner.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.rate),
        callbacks=[_Noting(diary)] if is_first else [],
        send_metrics_to_platform=False,
    )
    if is_first:
        diary.keep(learner.network)
    torch.distributed.destroy_process_group()  # or its threads may be there still when the process ends, and abort it


if __name__ == "__main__":
    main()
