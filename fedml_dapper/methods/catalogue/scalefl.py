"""ScaleFL (Ilhan, Su and Liu, CVPR 2023): sub-models scaled in width and in depth, with early exits.

Every stage of the network has a classifier. A sub-model is the leading channels of the first m stages, with their
classifiers. Its deepest classifier teaches the others; its loss is

    sum_j j l_j / (m (m + 1) / 2),   l_m = CE(p_m, y),   l_j = CE(p_j, y) + gamma T^2 KL(p_m^T || p_j^T)

with probabilities p^T softened by a temperature T. The server averages each coordinate over the clients that hold it.
The global model and every level's answer with their deepest classifier.

The original searches a grid for each level's depth and width. Here one rule serves all levels and networks. Of the
depths at which the budget can be used up, that one is taken at which depth and width have the most equal parts in the
reduction: whose share of the network is nearest, as a ratio, to the square root of the budget's. Then all widths shrink
alike until the budget is met, as ``dapper_args.pruning`` says: within 1 %, of parameters or multiply-accumulates. The
original narrows the residual streams too: ``scope: grouped``.

Where we differ: an early classifier gets to the last stage's features by pooling and 1x1 convolutions, where the public
code has three convolutions. The divergence is a mean over samples, where the public code's runs over the C classes too;
so the same gamma teaches C times more strongly here. The teacher gets no gradient from it. The public commands for
images leave gamma at 0, so they do not distil; here 0.05 is the default, the code's value for text. The server
averages BatchNorm's statistics, where the public code normalises by those of the test batch. There is no scaler
(``scaler.py`` says where one has an effect). Clients are weighted as ``aggregation_weights`` says; the original counts
them alike.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import one_tensor
from fedml_dapper.methods.contract import ClientContext, Downlink, Loss
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.methods.parts.early_exit_method import EarlyExitMethod, EarlyExitParams
from fedml_dapper.methods.parts.early_exits import EarlyExits, Prediction
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import ChannelLayout, PruningPlan, Widths, plan_window, size_of, solve_widths


class ScaleFLParams(EarlyExitParams):
    """Settings of ScaleFL; defaults are those of the public code where it distils, which for images it does not."""

    gamma: float = Field(default=0.05, ge=0)
    """Weight of what the deepest classifier teaches the others; 0, as in the public commands for images, teaches
    nothing."""
    temperature: float = Field(default=3.0, gt=0)
    """Temperature T that softens the probabilities of teacher and student."""
    delay: float = Field(default=0.25, ge=0, le=1)
    """Share of the rounds before the deepest classifier begins to teach."""
    prediction: Prediction = "deepest"
    """Answer of the global model and of every level's: the mean of all classifiers' logits, or the deepest's."""


class ScaleFL(EarlyExitMethod[ScaleFLParams]):
    """Sub-models that differ in width and depth; self-distillation from a client's deepest classifier."""

    name = "scalefl"
    Params = ScaleFLParams
    cost_note = "the early classifiers add to the full model, of which the ratios are."
    smallest = "the narrowest first stage of this scope with its classifier"

    def sub_model(self, ratio: float) -> PruningPlan:
        budget = 1 - ratio
        fitting = [depth for depth in self.beyond if self._narrowest(depth) <= budget <= self.share(depth)]
        if not fitting:
            raise self.out_of_reach(ratio, self._narrowest(1))
        depth = min(fitting, key=lambda depth: abs(2 * log(self.share(depth)) - log(budget)))
        pruning = self.problem.pruning
        layout = self.layout_of(depth)
        widths = solve_widths(layout, 1 - budget / self.share(depth), size_of(pruning), pruning.round_to)
        return PruningPlan(plan_window(layout, widths).kept, self.beyond[depth])

    def layout_of(self, depth: int) -> ChannelLayout:
        """The layout of a network of the first ``depth`` stages."""
        layout = self.problem.layout
        tensors = {name: spec for name, spec in layout.tensors.items() if name not in self.beyond[depth]}
        cut = {axis.group for spec in tensors.values() for axis in spec.axes}
        return replace(
            layout, tensors=tensors, groups={name: group for name, group in layout.groups.items() if name in cut}
        )

    def _narrowest(self, depth: int) -> float:
        """The share of ``depth`` stages with as few channels as there can be."""
        groups = self.layout_of(depth).groups.values()
        least = self.problem.pruning.round_to
        widths: Widths = {group.name: min(group.channels, least) for group in groups}
        return self.share(depth, widths)

    @property
    def depends_on_comm_round(self) -> str:
        if self.params.gamma == 0 or self.params.delay == 0:
            return ""
        return f"its deepest classifier teaches after {self.params.delay:g} of all rounds (delay)"

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The classifiers' losses, weighted by their depths, with what the deepest teaches."""
        del client
        params = self.params
        rounds = self.problem.training.comm_round
        gamma = params.gamma if downlink.round - 1 > params.delay * rounds else 0.0

        def loss(model: Backbone, batch: Batch) -> Tensor:
            assert isinstance(model, EarlyExits)
            *early, deepest = model.classify(one_tensor(batch.inputs))
            losses = [self.problem.task.loss(each, batch.targets) for each in (*early, deepest)]
            if gamma > 0:
                for index, student in enumerate(early):
                    losses[index] = losses[index] + gamma * divergence(student, deepest, params.temperature)
            weighted = torch.stack([depth * each for depth, each in enumerate(losses, start=1)])
            return weighted.sum() / (len(losses) * (len(losses) + 1) / 2)

        return loss
