"""DapperFL for clients that never hold the dense model: slim from the download on.

The server chooses a client's channels on the global weights, sends the slim model, and the client trains that in all
its epochs. Every client teaches the networks inside its own: in each step, or in every ``teach_every``-th, one weaker
level's, in turn, learns to say what the client's says. The server averages every coordinate over its holders, and goes
on in the direction of earlier rounds (FedAvgM). Fusion after the first epoch (DapperFL, Eq. 1-2) and the penalty on the
length of representations (Eq. 3 and 5) are switches: on validation images neither helped here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Pass,
    Phase,
    Problem,
    ServerState,
    Terms,
    Upload,
)
from fedml_dapper.methods.parts.dar import DARNorm, dar
from fedml_dapper.methods.parts.dealing import dealt_plan, first_ranked_plan
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.methods.parts.fusion import FusionParams, fuse
from fedml_dapper.methods.parts.per_step import PerStep
from fedml_dapper.methods.parts.server_momentum import momentum_step
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams, Statistics
from fedml_dapper.methods.parts.sub_width import SubWidth
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import PruningPlan, Recovery, Tensors, plan_by_importance, slim_layout


class DapperFLSlimParams(FusionParams, StaticBatchNormParams):
    """Settings of DapperFL from a slim download."""

    fusion: bool = False
    """Whether the first epoch's model is fused with the received one; it costs rounds, as it holds clients back."""
    gamma: float = Field(default=0.0, ge=0)
    """Strength of DAR."""
    dar_norm: DARNorm = "squared_mean"
    """Measure of length in DAR: squared per feature, which width does not change, squared, or plain."""
    dealt: float = Field(default=0.5, ge=0, le=1)
    """Share of a slim model's channels that are dealt out in turn; the others are the most important ones."""
    bn_statistics: Statistics = "slim"
    """Running statistics of the tested model, as in :class:`StaticBatchNormParams`; by default those tracked in
    training, so that with full models it is FedAvg."""
    recovery: Recovery = "holders"
    """Stand-in for dropped coordinates: nothing, so that only holders count, the previous global model, or zero."""
    server_momentum: float = Field(default=0.5, ge=0, lt=1)
    """Share of a round's change that the next one carries on."""
    distillation: float = Field(default=1.0, ge=0)
    """Weight of what weaker levels' networks are taught by those that hold them."""
    teach_every: int = Field(default=1, ge=1)
    """Steps from one that teaches a weaker level's network to the next; those between train the client's own alone."""


class DapperFLSlim(StaticBatchNorm[DapperFLSlimParams]):
    """Slim downloads, channels dealt out, sub-networks taught in place, averages over holders, server momentum."""

    name = "dapperfl_slim"
    Params = DapperFLSlimParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True
    cost_note = (
        "each step of a client, or every `teach_every`-th, also trains one weaker level's network inside its own, whose"
        " footprint is shown; with `distillation: 0` none does."
    )
    remedy = "set gamma and distillation to 0 in dapper_args.params.dapperfl_slim"

    def __init__(self, params: DapperFLSlimParams, problem: Problem) -> None:
        self.needs_representations = params.gamma > 0
        self.needs_labels = params.distillation > 0 and not problem.task.has_logits
        self.recovery = params.recovery
        super().__init__(params, problem)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The most important channels of the global model, and a share of the others in turn."""
        return dealt_plan(self.problem, server, client_id, self.params.dealt)

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs on the model that was sent, after the first of which it is fused with the received one if so set."""
        model = self.load(client, downlink)
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model)
        pupils = self._pupils(model, client, downlink)
        loss = self._terms(pupils)
        after_step = None if pupils is None else pupils.advance
        training.epoch(model, optimizer, loss, after_step)
        alpha = self.params.fusion_weight(downlink.round)
        if alpha > 0:
            fuse(dict(model.named_parameters()), downlink.weights, alpha)
        training.epoch(model, optimizer, loss, after_step, times=epochs - 1)
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training)

    def _terms(self, pupils: PerStep[SubWidth | None] | None) -> Terms:
        """The task's loss + gamma * L_DAR (Eq. 5), then the distillation into the network that the step teaches."""
        params = self.params
        task = self.problem.task

        def terms(model: Backbone, batch: Batch) -> Iterator[Tensor]:
            if params.gamma > 0:
                representations = model.encode(batch.inputs)
                outputs = model.predict(representations)
                total = task.loss(outputs, batch.targets) + params.gamma * dar(representations, params.dar_norm)
            else:
                outputs = model(batch.inputs)
                total = task.loss(outputs, batch.targets)
            yield total
            if pupils is not None and (pupil := pupils.now) is not None:
                yield params.distillation * divergence(task.logits(pupil(batch.inputs)), task.logits(outputs))

        return terms

    def _pupils(self, model: Backbone, client: ClientContext, downlink: Downlink) -> PerStep[SubWidth | None] | None:
        """Whom each step teaches: weaker levels' networks inside ``model`` in turn, and None between them.

        None alone where there is no weaker level.
        """
        weaker = self._weaker(client.profile)
        if not weaker:
            return None
        layout = slim_layout(self.problem.layout, downlink.plan)
        plans = [plan_by_importance(layout, model.state_dict(), self.problem.widths(ratio)) for ratio in weaker]
        between = [None] * (self.params.teach_every - 1)
        return PerStep(cycle([pupil for plan in plans for pupil in (SubWidth(model, layout, plan), *between)]))

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """FedAvgM's step: v <- beta v + (W' - W) and W <- W + v over trainable parameters, where W' is the mean."""
        momentum_step(server, mean, self.params.server_momentum, self.problem.layout.trainable)

    def level_plan(self, server: ServerState, level: int) -> PruningPlan:
        """The most important channels alone."""
        return first_ranked_plan(self.problem, server, level)

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs, of which every ``teach_every``-th step teaches one of the weaker levels' networks, in turn."""
        own = Pass(self.first_plan(profile))
        layout = self.problem.layout
        weights = self.problem.backbone.state_dict()
        taught = [
            Pass(plan_by_importance(layout, weights, self.problem.widths(ratio))) for ratio in self._weaker(profile)
        ]
        epochs = self.epochs(profile)
        share = 1 / self.params.teach_every if taught else 0
        teaching = [Phase(epochs * share / len(taught), (own, network)) for network in taught]
        alone = [Phase(epochs * (1 - share), (own,))] if share < 1 else []
        return (*teaching, *alone, *self.measuring(profile))

    def _weaker(self, profile: ClientProfile) -> list[float]:
        """The ratios of the levels whose networks a client teaches, ascending."""
        if self.params.distillation == 0:
            return []
        return sorted({ratio for ratio in self.problem.ratios if ratio > profile.ratio})
