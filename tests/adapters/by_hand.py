"""A network of one layer with an adapter, and rounds of messages written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedml_dapper.config import AdapterArgs, LevelBudget, PruningArgs, TrainArgs
from fedml_dapper.methods import METHODS, Method, Problem, ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.contract import ClientProfile
from fedml_dapper.models import adopt
from fedml_dapper.models.adapters import add_adapters

A = "hidden.lora_a"
B = "hidden.lora_b"
EXAMPLE = torch.ones(1, 2)


class Tiny(nn.Module):
    """Two inputs, two hidden channels that may be cut, two representations, two outputs."""

    def __init__(self, hidden: nn.Module | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 2) if hidden is None else hidden
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(torch.relu(self.hidden(x)))))


def method_of(name: str, budgets: Sequence[LevelBudget], network: Tiny | None = None, **params: Any) -> Method[Any]:
    """The method on the network above, with an adapter of rank 2 and alpha / r = 2. The first hidden channel is the
    larger one."""
    if network is None:
        network = Tiny()
        network.hidden.get_parameter("weight").data = torch.tensor([[3.0, 3.0], [1.0, 1.0]])
    backbone = adopt(network, EXAMPLE)
    add_adapters(backbone, AdapterArgs(rank=2, alpha=4, targets=("hidden",)), EXAMPLE, "the network")
    problem = Problem(
        backbone, EXAMPLE, TrainArgs(), PruningArgs(), uniform_weights=False, seed=1,
        ratios=(0.0,) * len(budgets), budgets=tuple(budgets),
    )  # fmt: skip
    return METHODS[name](METHODS[name].check_params(params), problem.with_ratios_of_budgets())


def server_of(method: Method[Any], samples: Sequence[int]) -> ServerState:
    """The state before round 1 of a server with a client of each level, which have so many samples."""
    profiles = tuple(
        ClientProfile(client, "", client + 1, ratio, count)
        for client, (ratio, count) in enumerate(zip(method.problem.ratios, samples, strict=True))
    )
    clients = tuple(range(len(profiles)))
    return ServerState(0, method.problem.starting_weights(), profiles, clients=clients)


def upload(
    method: Method[Any], server: ServerState, client_id: int, a: Any = None, b: Any = None, head: Any = None
) -> Upload:
    """The upload of a client that has come to these matrices, and to this bias of the last layer; None: as sent."""
    downlink = method.downlink(server, client_id)
    moved = {name: torch.as_tensor(rows) for name, rows in ((A, a), (B, b)) if rows is not None}
    if head is not None:
        moved["head.bias"] = torch.full((2,), float(head))
    for name, tensor in moved.items():
        assert tensor.shape == downlink.weights[name].shape
    count = server.profiles[client_id].num_samples
    metrics = TrainingMetrics(loss=1, steps=1, seconds=0)
    return Upload(1, client_id, count, {**downlink.weights, **moved}, metrics, downlink.plan)


def close_round(method: Method[Any], server: ServerState, uploads: Sequence[Upload]) -> ServerState:
    """The state after a round of these uploads, each of which the method has checked."""
    aggregation = method.aggregation(server)
    for each in uploads:
        method.check_plan(server, each)
        aggregation.add(each)
    aggregation.close()
    return replace(server, round=server.round + 1)
