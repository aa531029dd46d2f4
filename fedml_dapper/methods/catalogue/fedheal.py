"""FedHEAL (Chen et al., CVPR 2024): the server heeds consistent updates and clients far from it.

Per client and coordinate the server counts in how many rounds the client pushed the coordinate up. An update against
the client's habit is ignored. Clients whose remaining update is long are weighted up round by round. Clients do what
they do in FedAvg.

As in public code BatchNorm's statistics are treated like parameters, except that they do not count in the length of an
update; of its counters the largest is taken. The length is the sum of the tensors' norms, not the norm of all
coordinates, and weights are remembered as they add up, so that later rounds change them less and less; ``normalise``
keeps their sum at 1. A client's history counts the rounds that it took part in, and is not consulted in its first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.methods.contract import Aggregation, Method, MethodParams, Problem, ServerState, Upload
from fedml_dapper.methods.parts.averaging import WeightedMean
from fedml_dapper.pruning import Tensors


class FedHEALParams(MethodParams):
    """Settings of FedHEAL; FDSE's comparison has ``tau`` 0.2 for Office-Caltech10 and 0.1 for PACS."""

    tau: float = Field(default=0.3, lt=1)
    """Share of past rounds in which a client must have moved a coordinate the same way; below 0 all updates count."""
    beta: float = Field(default=0.4, ge=0, le=1)
    """Share of the present round in a client's weight increment; 0 weights all clients alike."""
    normalise: bool = False
    """Scaling of the remembered weights of a round's clients to sum 1 after every round."""


class FedHEAL(Method[FedHEALParams]):
    """FedAvg on the clients; the server drops inconsistent updates and weights by distance."""

    name = "fedheal"
    Params = FedHEALParams
    cost_note = (
        "messages are FedAvg's; the server keeps an integer per coordinate for every client, as much memory as all"
        " their models together, and a round's uploads until it closes."
    )

    @property
    def beyond_sums(self) -> str:
        return "which coordinates of each client's update are consistent, and how far it moved"

    def aggregation(self, server: ServerState) -> Aggregation:
        return ConsistentMean(server, self.problem, self.params)


class ConsistentMean:
    """Mean of each coordinate over the clients whose update of it was consistent, weighted by q_i."""

    def __init__(self, server: ServerState, problem: Problem, params: FedHEALParams) -> None:
        self._server = server
        self._params = params
        self._uniform = problem.uniform_weights
        self._names = [name for name, tensor in server.weights.items() if tensor.is_floating_point()]
        self._trainable = frozenset(problem.layout.trainable)
        self._mean = WeightedMean(server.weights)  # checks every upload; of its result only the counters are needed
        self._clients = first_weights(len(server.profiles), problem.training.client_num_per_round)
        self._clients |= {name: tensor.clone() for name, tensor in server.memory.recall("clients").items()}
        self._models: dict[int, Tensors] = {}
        self._consistent: dict[int, Tensors] = {}
        self._distances: list[float] = []

    def add(self, upload: Upload) -> None:
        self._mean.add(upload.weights, 1 if self._uniform else upload.num_samples)
        client_id = upload.client_id
        before = self._server.weights
        rounds = int(self._clients["rounds"][client_id])
        rises = self._rises(client_id)
        model = {name: upload.weights[name].to(before[name].device) for name in self._names}
        masks = {
            name: consistent(tensor >= before[name], rises[name], rounds, self._params.tau)
            for name, tensor in model.items()
        }
        trained = {name: model[name] for name in model if name in self._trainable}
        self._distances.append(distance(trained, before, masks))
        self._models[client_id] = model
        self._consistent[client_id] = masks

    def close(self) -> None:
        server = self._server
        before = self._server.weights
        clients = self._clients
        ids = list(self._models)
        q, increments = new_weights(
            clients["weights"][ids],
            clients["increments"][ids],
            torch.tensor(self._distances, dtype=torch.float64),
            self._params.beta,
        )
        shares = q / q.sum()
        for client_id, model in self._models.items():
            rises = self._rises(client_id)
            server.memory.keep(
                f"rises{client_id}", {name: rises[name] + (model[name] >= before[name]) for name in model}
            )
        moved = {
            name: consistent_mean(
                before[name],
                [model[name] for model in self._models.values()],
                [masks[name] for masks in self._consistent.values()],
                shares.tolist(),
            )
            for name in self._names
        }
        server.weights = {**self._mean.result(), **moved}
        clients["weights"][ids] = shares if self._params.normalise else q
        clients["increments"][ids] = increments
        clients["rounds"][ids] += 1
        server.memory.keep("clients", clients)

    def _rises(self, client_id: int) -> Tensors:
        """Counts of rounds in which the client moved each coordinate up, or not at all: int32."""
        return self._server.memory.recall(f"rises{client_id}") or {
            name: torch.zeros_like(self._server.weights[name], dtype=torch.int32) for name in self._names
        }


def first_weights(clients: int, per_round: int) -> dict[str, Tensor]:
    """State of all clients before round 1, each (N,): weights q_i = 1 / |S|, increments a_i = 0, no rounds."""
    return {
        "weights": torch.full((clients,), 1 / per_round, dtype=torch.float64),
        "increments": torch.zeros(clients, dtype=torch.float64),
        "rounds": torch.zeros(clients, dtype=torch.int64),
    }


def consistent(rose: Tensor, rises: Tensor, rounds: int, tau: float) -> Tensor:
    """Mask m_i: whether a coordinate moved the same way in more than ``tau`` of the client's past ``rounds``.

    Without past rounds all coordinates count.

    ``rose`` (bool) says U_i >= 0 for the present update, ``rises`` (int) in how many past rounds it was so.
    """
    if rounds == 0:
        return torch.ones_like(rose)
    alike = torch.where(rose, rises, rounds - rises)
    return alike / rounds > tau


def distance(model: Tensors, before: Tensors, masks: Tensors) -> float:
    """Length dist_i of an update: the sum over tensors of ||m_i U_i||_2."""
    lengths = [torch.linalg.vector_norm((tensor - before[name]) * masks[name]) for name, tensor in model.items()]
    return float(torch.stack(lengths).double().sum())


def new_weights(q: Tensor, increments: Tensor, distances: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Weights q_i + a_i and increments a_i = (1 - beta) a_i + beta dist_i / sum_j dist_j; the share is 0 if nobody
    moved."""
    total = distances.sum()
    shares = distances / total if total > 0 else torch.zeros_like(distances)
    increments = (1 - beta) * increments + beta * shares
    return q + increments, increments


def consistent_mean(
    before: Tensor, models: Sequence[Tensor], masks: Sequence[Tensor], shares: Sequence[float]
) -> Tensor:
    """Mean of the w_i per coordinate with weights q_i m_i, W + sum_i q_i m_i U_i / sum_i q_i m_i; W where all m_i are
    0."""
    total, held = (torch.zeros_like(before, dtype=torch.float64) for _ in range(2))
    for model, mask, share in zip(models, masks, shares, strict=True):
        weight = mask.double() * share
        total += weight * model.double()
        held += weight
    return torch.where(held > 0, total / held, before.double()).to(before.dtype)
