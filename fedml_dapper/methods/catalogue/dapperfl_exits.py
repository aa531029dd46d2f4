"""Slim downloads of a network with a classifier behind every stage, where all classifiers teach the early ones.

Channels are chosen, dealt out and averaged as ``dapperfl_slim`` does, with its momentum at the server. What differs is
the network and what a client learns. The network is DepthFL's, with an early exit behind every stage but the last, and
every client has all of them, whatever its width. With K classifiers of logits p_i, its loss is

    sum_i CE(p_i, y) + beta sum_{i < K} KL(mean_j p_j || p_i)

where the mean, which is the answer of the global model and of every level's, gets no gradient from what it teaches. No
weaker network is trained beside a client's own. Exits are a few percent of a network's multiply-accumulates.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import one_tensor
from fedml_dapper.methods.contract import ClientContext, Downlink, Loss, Method, MethodParams, ServerState
from fedml_dapper.methods.parts.dealing import dealt_plan, first_ranked_plan
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.methods.parts.early_exits import EarlyExits, with_exits
from fedml_dapper.methods.parts.server_momentum import momentum_step
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import PruningPlan, Recovery, Tensors


class DapperFLExitsParams(MethodParams):
    """Settings of slim networks with exits; defaults were chosen on validation images of PACS, with two seeds."""

    dealt: float = Field(default=0.5, ge=0, le=1)
    """Share of a slim model's channels that are dealt out in turn; the others are the most important ones."""
    server_momentum: float = Field(default=0.5, ge=0, lt=1)
    """Share of a round's change that the next one carries on."""
    distillation: float = Field(default=1.0, ge=0)
    """Weight beta of what the mean of all classifiers teaches the early ones; 0 teaches nothing."""


class DapperFLExits(Method[DapperFLExitsParams]):
    """Slim downloads of a network with early exits, channels dealt out, averages over holders, server momentum."""

    name = "dapperfl_exits"
    Params = DapperFLExitsParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True
    needs_labels = True
    recovery: Recovery = "holders"
    cost_note = "the early classifiers add to the full model, of which the ratios are."

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone with a classifier behind every stage, which answers with the mean of all logits."""
        return with_exits(backbone, "ensemble", self.name, self.problem.seed)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The most important channels of the global model, and a share of the others in turn."""
        return dealt_plan(self.problem, server, client_id, self.params.dealt)

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """Sum of the classifiers' losses, and of how far the early ones are from the mean of all."""
        del client, downlink
        task = self.problem.task
        weight = self.params.distillation

        def loss(model: Backbone, batch: Batch) -> Tensor:
            assert isinstance(model, EarlyExits)
            logits = model.classify(one_tensor(batch.inputs))
            total = torch.stack([task.loss(each, batch.targets) for each in logits]).sum()
            if weight > 0:
                answer = torch.stack(logits).mean(dim=0)
                apart = [divergence(early, answer) for early in logits[:-1]]
                total = total + weight * torch.stack(apart).sum()
            return total

        return loss

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """FedAvgM's step: v <- beta v + (W' - W) and W <- W + v over trainable parameters, where W' is the mean."""
        momentum_step(server, mean, self.params.server_momentum, self.problem.layout.trainable)

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The global model's most important channels, as many as a device of ``level`` can carry."""
        return self.part_of_global_model(server, first_ranked_plan(self.problem, server, level))
