"""MOON (Li et al., CVPR 2021): model-contrastive learning.

A client's representation of an image is pulled towards that of the global model it received and pushed away from that
of the model it uploaded last. Full models on every client; the server averages as in FedAvg.

As in the ports used for domain-skew comparisons, z itself is contrasted; the original's projection head is
``projection_head``. In a client's first round there is no last model, so the term is left out: contrasting against the
received model instead would add the constant log 2. One last model is kept; the original allows several.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    Loss,
    Method,
    MethodParams,
    Pass,
    Phase,
    Upload,
)
from fedml_dapper.models import Backbone, ExtendedBackbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.randomness.seeding import Stream, seeded_layers


class MOONParams(MethodParams):
    """Settings of MOON; defaults as in DapperFL, Table 4."""

    mu: float = Field(default=1.0, ge=0)
    """Strength of the contrastive term."""
    tau: float = Field(default=0.5, gt=0)
    """Temperature of the contrast."""
    projection_head: bool = False
    """Two linear layers between encoder and predictor, whose output is then z."""


class MOON(Method[MOONParams]):
    """FedAvg with a contrast between global and last local representations."""

    name = "moon"
    Params = MOONParams
    needs_representations = True
    cost_note = (
        "every client trains the full model, runs each training image through two frozen models besides, and keeps its"
        " last model between rounds."
    )

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE + mu * contrast(z, z of the received model, z of the model last uploaded)."""
        params = self.params
        last = client.memory.recall("last_model")
        if not last:
            return self.problem.task_loss
        received = self.load(client, downlink).eval()
        previous = self.local_model(downlink.plan).to(client.device).eval()
        put_tensors(previous, last)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            representations = model.encode(batch.inputs)
            with torch.no_grad():
                towards = received.encode(batch.inputs)
                away = previous.encode(batch.inputs)
            task_loss = self.problem.task.loss(model.predict(representations), batch.targets)
            return task_loss + params.mu * contrast(representations, towards, away, params.tau)

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """FedAvg's local update, after which the model that is sent is remembered."""
        upload = super().local_update(client, downlink)
        if self.params.mu > 0:
            client.memory.keep("last_model", upload.weights)
        return upload

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone, with a projection head between encoder and predictor if so set."""
        if not self.params.projection_head:
            return backbone
        with seeded_layers(self.problem.seed, Stream.METHOD):
            return ProjectedBackbone(backbone).to(next(backbone.parameters()).device)

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs beside two frozen models."""
        (phase,) = super().local_phases(profile)
        frozen = Pass(self.first_plan(profile), backward=False)
        return (replace(phase, passes=(*phase.passes, frozen, frozen)),)


class ProjectedBackbone(ExtendedBackbone):
    """Backbone with a projection head: z = W_2 relu(W_1 g_e(x) + b_1) + b_2, of the encoder's width d."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        width = self.predictor.in_features
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def encode(self, images: Tensor) -> Tensor:
        representations: Tensor = self.projection(self.encoder.encode(images))
        return representations


def contrast(representations: Tensor, towards: Tensor, away: Tensor, tau: float) -> Tensor:
    """Batch mean of -log(e^(a / tau) / (e^(a / tau) + e^(b / tau))), a = cos(z, towards), b = cos(z, away).

    The three representations have shape (B, d); the result is a scalar.
    """
    a = F.cosine_similarity(representations, towards, dim=1)
    b = F.cosine_similarity(representations, away, dim=1)
    return F.softplus((b - a) / tau).mean()
