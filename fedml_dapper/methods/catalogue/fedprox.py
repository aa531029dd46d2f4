"""FedProx (Li et al., MLSys 2020).

Local training is held near the received model by a quadratic term, and weak clients may do less of it. In DapperFL's
comparison the paper says only that they run fewer local updates; here a client of pruning ratio rho runs
max(1, round((1 - rho) E)) epochs, on the full model all the same.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import ClientContext, ClientProfile, Downlink, Loss, Method, MethodParams
from fedml_dapper.models import Backbone


class FedProxParams(MethodParams):
    """Settings of FedProx; ``mu`` as in DapperFL, Table 4."""

    mu: float = Field(default=0.1, ge=0)
    """Strength of the proximal term."""
    level_epochs: bool = True
    """Fewer local epochs for weaker clients; False gives everyone E."""


class FedProx(Method[FedProxParams]):
    """FedAvg with a proximal term, and local work by capability level."""

    name = "fedprox"
    Params = FedProxParams
    cost_note = "weak clients train the full model for fewer epochs; neither their memory nor their traffic is reduced."

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE + (mu / 2) ||w - W||^2 over trainable parameters, W as received."""
        mu = self.params.mu
        if mu == 0:
            return self.problem.task_loss
        received = {name: tensor.to(client.device) for name, tensor in downlink.weights.items()}

        def loss(model: Backbone, batch: Batch) -> Tensor:
            task_loss = self.problem.task_loss(model, batch)
            squares = [(w - received[name]).square().sum() for name, w in model.named_parameters() if name in received]
            return task_loss + mu / 2 * torch.stack(squares).sum()

        return loss

    def epochs(self, profile: ClientProfile) -> int:
        """max(1, round((1 - rho) E)) for a client of pruning ratio rho, or E for everyone."""
        every = self.problem.training.epochs
        return max(1, round((1 - profile.ratio) * every)) if self.params.level_epochs else every
