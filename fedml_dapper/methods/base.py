"""The contract every method meets; the defaults below are FedAvg."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedml_dapper.config import PruningArgs, Section, TrainArgs, check
from fedml_dapper.datasets import Batch
from fedml_dapper.methods.local_training import ClientContext, LocalTraining, cross_entropy
from fedml_dapper.methods.messages import Downlink, Upload
from fedml_dapper.methods.state import ServerState
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import (
    ChannelLayout,
    Footprint,
    RecoveringMean,
    Recovery,
    Widths,
    footprint,
    slim_model,
    solve_widths,
    trace_layout,
)


class MethodParams(Section):
    """Base of a method's own settings, ``dapper_args.params``."""


@dataclass(frozen=True)
class Task:
    """What is to be learnt, the same for every method that is compared on it."""

    backbone: Backbone
    """The initial global model; never trained itself."""
    input_size: int
    training: TrainArgs
    pruning: PruningArgs
    uniform_weights: bool
    seed: int

    @cached_property
    def layout(self) -> ChannelLayout:
        """The prunable channels of the backbone, traced once."""
        return trace_layout(self.backbone, self.input_size, self.pruning.scope)

    def widths(self, ratio: float) -> Widths:
        """Channels that a client of pruning ratio ``ratio`` keeps, solved once per ratio."""
        if ratio not in self._solved:
            self._solved[ratio] = solve_widths(self.layout, ratio, self.pruning.ratio_of, self.pruning.round_to)
        return self._solved[ratio]

    @cached_property
    def _solved(self) -> dict[float, Widths]:
        return {}


class Aggregation(Protocol):
    """One round's aggregation. Uploads arrive in ascending client id and are not kept."""

    def add(self, upload: Upload) -> None:
        """Fold one upload in; raises ``ProtocolError``, with nothing changed, if it does not fit."""

    def close(self) -> None:
        """Write the new global model, and what the method remembers, into the server's state."""


P = TypeVar("P", bound=MethodParams)


class Method(Generic[P]):
    """A federated learning method: what is sent, how a client trains, how the server aggregates.

    Methods keep nothing in themselves between rounds: the server's memory is ``ServerState.memory``, a client's is
    ``ClientContext.memory``. So the same object serves any client, in any process.
    """

    name: ClassVar[str]
    Params: type[P]
    slims: ClassVar[bool] = False
    """Whether weak clients train slim models; otherwise everyone trains the full one (DapperFL, footnote 6)."""
    cost_note: ClassVar[str] = ""
    """For reports: what the method's pruning does not save."""

    def __init__(self, params: P, task: Task) -> None:
        self.params = params
        self.task = replace(task, backbone=self.build_model(task.backbone))

    @classmethod
    def check_params(cls, values: Mapping[str, Any]) -> P:
        """The method's settings from plain values; raises ``ConfigError``."""
        return check(cls.Params, values, where=f"settings of {cls.name}", prefix=f"dapper_args.params.{cls.name}")

    def build_model(self, backbone: Backbone) -> Backbone:
        """The model this method trains; methods that change layers return a changed copy."""
        return backbone

    def footprint(self, ratio: float) -> Footprint:
        """What a client of pruning ratio ``ratio`` trains and sends."""
        return footprint(self.task.layout, self.task.widths(ratio) if self.slims else {})

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """What a client gets in the round that follows ``server.round`` completed ones."""
        return Downlink(round=server.round + 1, client_id=client_id, weights=server.weights)

    def load(self, downlink: Downlink, device: torch.device) -> Backbone:
        """A client's own copy of the model it was sent."""
        model = slim_model(self.task.backbone, self.task.layout, downlink.plan).to(device)
        model.load_state_dict(dict(downlink.weights))
        return model

    def loss(self, model: Backbone, batch: Batch) -> Tensor:
        """The local objective on one batch: mean cross-entropy."""
        return cross_entropy(model, batch)

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """A client's round: E epochs of SGD on :meth:`loss` from the received model."""
        model = self.load(downlink, client.device)
        training = LocalTraining(client, downlink.round, self.task.training)
        optimizer = training.optimizer(model)
        for _ in range(self.task.training.epochs):
            training.epoch(model, optimizer, self.loss)
        return Upload(
            downlink.round, client.profile.client_id, client.data.num_samples, model.state_dict(), training.metrics()
        )

    def aggregation(self, server: ServerState) -> Aggregation:
        """Recover what was pruned and average (DapperFL Eq. 6-7); without pruning, FedAvg's weighted mean."""
        return RecoverAndAverage(server, self.task)

    def model_for(self, server: ServerState, client_id: int | None = None) -> Backbone:
        """The model to evaluate: the global one, or ``client_id``'s own where the method personalises."""
        del client_id
        model = copy.deepcopy(self.task.backbone)
        model.load_state_dict(server.weights)
        return model


class RecoverAndAverage:
    """Aggregation of slim or full models by kept index, weighted by samples (or uniformly)."""

    def __init__(self, server: ServerState, task: Task, recovery: Recovery = "global") -> None:
        self._server = server
        self._uniform = task.uniform_weights
        self._mean = RecoveringMean(server.weights, task.layout, recovery)

    def add(self, upload: Upload) -> None:
        weight = 1 if self._uniform else upload.num_samples
        self._mean.add(upload.weights, upload.plan, weight, upload.unsliced)

    def close(self) -> None:
        self._server.weights = self._mean.result()
