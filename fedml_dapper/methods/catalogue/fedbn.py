"""FedBN (Li et al., ICLR 2021): every client keeps its BatchNorm layers.

Affine parameters and running statistics of every BatchNorm, found by layer type, stay on the client, which is tested
with its own; everything else is FedAvg. On a network without BatchNorm it would be FedAvg, and refuses.

A newcomer has no BatchNorm of its own: it takes the initial affine and statistics measured on its unlabelled images.
In training mode no layer's statistics depend on running ones, so one pass over the images gives what the public code
reaches in five.
"""

from __future__ import annotations

from functools import cached_property

import torch

from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import Method, MethodParams, Problem, ServerState
from fedml_dapper.methods.contract.batchnorm import renew_statistics
from fedml_dapper.methods.parts.layers import tensors_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import BatchNorm


class FedBNParams(MethodParams):
    """Settings of FedBN, of which there are none."""


class FedBN(Method[FedBNParams]):
    """FedAvg on all layers but BatchNorm."""

    name = "fedbn"
    Params = FedBNParams
    has_global_model = False
    cost_note = "every client trains the full model and keeps its BatchNorm layers between rounds."

    def __init__(self, params: FedBNParams, problem: Problem) -> None:
        super().__init__(params, problem)
        if not self.personal:
            raise ConfigError(
                f"dapper_args.method: `fedbn` keeps BatchNorm at home, and {problem.backbone.label} has none, or none"
                " with gains or statistics, so that it would be fedavg; choose that one, or a network with BatchNorm"
            )

    @cached_property
    def personal(self) -> frozenset[str]:
        """State-dict entries of BatchNorm layers: gains, biases and statistics."""
        return tensors_of(self.problem.backbone, BatchNorm)

    def adapted_model(self, server: ServerState, data: ClientData, device: torch.device) -> Backbone:
        """The shared layers with BatchNorm statistics of the newcomer's images."""
        model = self.global_model(server).to(device)
        renew_statistics(model, data, device)
        return model
