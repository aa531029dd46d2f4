"""Ditto (Li et al., ICML 2021): a personal model beside the global one.

A client takes part in FedAvg and, besides, trains a model v_i of its own, held near the received global model by a
quadratic term. v_i starts as the model of the client's first round, never leaves the client and is what it uses.

v_i is trained after the client's part in FedAvg, for as many epochs and on the same batches; public code interleaves
the two, which gives the same models. Its BatchNorm statistics are its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    Loss,
    Method,
    MethodParams,
    Phase,
    TrainingMetrics,
    Upload,
)
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors


class DittoParams(MethodParams):
    """Settings of Ditto."""

    mu: float = Field(default=1.0, ge=0)
    """Strength of the term that holds v_i near the global model; FDSE's comparison has 0.01 for Office-Caltech10,
    0.0001 for PACS."""


class Ditto(Method[DittoParams]):
    """FedAvg, and a regularised personal model on every client."""

    name = "ditto"
    Params = DittoParams
    cost_note = (
        "every client trains two full models, so its compute is twice what the footprint shows, and keeps one of them"
        " between rounds."
    )

    @property
    def personalises(self) -> bool:
        return True

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs of the global model, then as many of the client's own."""
        return super().local_phases(profile) * 2

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """FedAvg's local update, then E epochs of v_i; loss is the former's, steps and seconds are both's."""
        steps = self.epochs(client.profile) * client.data.steps_per_epoch

        def reporting(before: int) -> ClientContext:
            """The client, whose steps count from ``before`` on and as part of both models'."""
            return replace(client, on_step=lambda done, _: client.on_step(before + done, 2 * steps))

        upload = super().local_update(reporting(0), downlink)
        shared = upload.metrics
        own = self._train_own(reporting(steps), downlink)
        both = replace(shared, steps=shared.steps + own.steps, seconds=shared.seconds + own.seconds)
        return replace(upload, metrics=both)

    def personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The client's own model v_i; the received one on a client that has none yet."""
        model = self.load(client, downlink)
        put_tensors(model, client.memory.recall("own_model"))
        return model

    def personal_objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE + (mu / 2) ||v - W||^2 over trainable parameters, W as received."""
        mu = self.params.mu
        if mu == 0:
            return self.problem.task_loss
        received = {name: tensor.to(client.device) for name, tensor in downlink.weights.items()}

        def loss(model: Backbone, batch: Batch) -> Tensor:
            task_loss = self.problem.task_loss(model, batch)
            squares = [(v - received[name]).square().sum() for name, v in model.named_parameters() if name in received]
            return task_loss + mu / 2 * torch.stack(squares).sum()

        return loss

    def _train_own(self, client: ClientContext, downlink: Downlink) -> TrainingMetrics:
        model = self.personal_model(client, downlink)
        training = self.train_epochs(client, downlink, model, self.personal_objective(client, downlink))
        client.memory.keep("own_model", model.state_dict())
        return training.metrics()
