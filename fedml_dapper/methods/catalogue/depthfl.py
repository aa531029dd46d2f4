"""DepthFL (Kim et al., ICLR 2023): sub-models of the first stages, whose classifiers teach each other.

Every stage of the network has a classifier. A client trains as many stages as its capability level can carry, and all
their classifiers. With K of them and t rounds done its loss is

    sum_i CE(p_i, y) + beta(t) / (K - 1) sum_i sum_{j != i} KL(p_j || p_i),   beta(t) = exp(-5 (1 - min(t, R) / R)^2)

where p_j gets no gradient. The server averages each tensor over the clients that hold it. The global model answers with
the mean of its classifiers' logits, and a level's model with the mean of those that it has.

A level's depth is the largest whose parameters, or multiply-accumulates (``dapper_args.pruning.ratio_of``), are within
its budget. No channel is cut: what is left of the budget stays unused, and ``pruning.scope`` changes nothing.

Where we differ: an early classifier gets to the last stage's features by pooling and 1x1 convolutions, where the public
code has separable convolutions and attention. Local training is plain, as in the paper's "DepthFL (FedAvg)", without
FedDyn's regularisation. The public code trains without momentum; here ``train_args.momentum`` says, 0.9 by default. R
is a share of the rounds, 300 of the public code's 1,000. Clients are weighted as ``aggregation_weights`` says; the
original counts them alike.
"""

from __future__ import annotations

from itertools import permutations
from math import exp

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import one_tensor
from fedml_dapper.methods.contract import ClientContext, Downlink, Loss
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.methods.parts.early_exit_method import EarlyExitMethod, EarlyExitParams
from fedml_dapper.methods.parts.early_exits import EarlyExits
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import PruningPlan


class DepthFLParams(EarlyExitParams):
    """Settings of DepthFL; defaults are the public code's."""

    distillation: float = Field(default=1.0, ge=0)
    """Largest weight of what the classifiers teach each other; 0 is the ablation without."""
    ramp_up: float = Field(default=0.3, ge=0, le=1)
    """Share of the rounds over which the weight of distillation rises."""


class DepthFL(EarlyExitMethod[DepthFLParams]):
    """Sub-models that differ in depth; mutual self-distillation among a client's classifiers."""

    name = "depthfl"
    Params = DepthFLParams
    smallest = "the first stage with its classifier"
    cost_note = (
        "a level trains as many whole stages as its budget holds, which may leave much of it unused; the early"
        " classifiers add to the full model."
    )

    def sub_model(self, ratio: float) -> PruningPlan:
        fitting = [depth for depth in self.beyond if self.share(depth) <= 1 - ratio]
        if not fitting:
            raise self.out_of_reach(ratio, self.share(1))
        return PruningPlan({}, self.beyond[max(fitting)])

    @property
    def depends_on_comm_round(self) -> str:
        if self.params.distillation == 0 or self.params.ramp_up == 0:
            return ""
        return f"the weight of its distillation rises over {self.params.ramp_up:g} of all rounds (ramp_up)"

    def consistency_weight(self, round_: int) -> float:
        """Weight of distillation, beta(t), with t rounds completed before ``round_``."""
        rising = self.params.ramp_up * self.problem.training.comm_round
        left = 1 - min(1.0, (round_ - 1) / rising) if rising > 0 else 0.0
        return self.params.distillation * exp(-5 * left**2)

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """Sum of the classifiers' losses, and of the divergence of each pair of them."""
        weight = self.consistency_weight(downlink.round)
        teaches = weight > 0
        # a tensor, whose value may change from round to round in one recorded step
        scale = torch.tensor(weight, dtype=torch.float64, device=client.device)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            assert isinstance(model, EarlyExits)
            logits = model.classify(one_tensor(batch.inputs))
            total = torch.stack([self.problem.task.loss(each, batch.targets) for each in logits]).sum()
            if teaches and len(logits) > 1:
                apart = torch.stack([divergence(student, teacher) for student, teacher in permutations(logits, 2)])
                total = total + (scale / (len(logits) - 1)).to(total.dtype) * apart.sum()
            return total

        return loss
