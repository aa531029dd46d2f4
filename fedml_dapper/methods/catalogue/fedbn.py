"""FedBN (Li et al., ICLR 2021): BatchNorm stays at home.

Affine parameters and running statistics of every BatchNorm, found by layer type, stay on the client, which is tested
with its own; everything else is FedAvg. On a network without BatchNorm it is FedAvg.

A newcomer has no BatchNorm of its own: it takes the initial affine and statistics measured on its unlabelled images.
In training mode no layer's statistics depend on running ones, so one pass over the images gives what the public code
reaches in five.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from fedml_dapper.datasets import ClientData
from fedml_dapper.methods.contract import Method, MethodParams, ServerState
from fedml_dapper.methods.contract.batchnorm import renew_statistics
from fedml_dapper.methods.parts.layers import tensors_of
from fedml_dapper.models import Backbone


class FedBNParams(MethodParams):
    """FedBN has no settings of its own."""


class FedBN(Method[FedBNParams]):
    """FedAvg on all but BatchNorm."""

    name = "fedbn"
    Params = FedBNParams
    has_global_model = False
    cost_note = "every client trains the full model and keeps its BatchNorm layers between rounds."

    @cached_property
    def personal(self) -> frozenset[str]:
        """All that belongs to BatchNorm layers."""
        return tensors_of(self.problem.backbone, nn.BatchNorm1d, nn.BatchNorm2d)

    def adapted_model(self, server: ServerState, data: ClientData, device: torch.device) -> Backbone:
        """The shared layers with BatchNorm statistics of the newcomer's images."""
        model = self.global_model(server).to(device)
        renew_statistics(model, data, device)
        return model
