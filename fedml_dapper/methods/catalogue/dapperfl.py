"""DapperFL (Jia et al., NeurIPS 2024).

Each round a client fine-tunes the dense global model for one epoch, fuses the result with the received model (MFP,
Eq. 1-2), drops the channels its capability level cannot carry by l1 norm of the fused weights, trains the slim model
for the remaining epochs with a penalty on the length of representations (DAR, Eq. 3-5) and sends the slim model. The
server refills what was dropped from the previous global model and averages (Eq. 6-7).

Deviations from the text, each a setting: the penalty is a batch mean and the task loss ordinary cross-entropy (Eq. 3
and 4 read literally depend on batch size and class count); BatchNorm statistics, on which the paper is silent, are
those of the dense epoch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Loss,
    Method,
    Pass,
    Phase,
    Problem,
    ServerState,
    Upload,
    forward_only,
)
from fedml_dapper.methods.contract.batchnorm import recalibrate, running_statistics
from fedml_dapper.methods.parts.dar import DARNorm, dar
from fedml_dapper.methods.parts.fusion import FusionParams, fuse
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.pruning import (
    DENSE,
    Footprint,
    PruningPlan,
    Recovery,
    Widths,
    carry_optimizer_state,
    footprint,
    plan_by_importance,
    slim_model,
)
from fedml_dapper.pruning.official_mask import apply_masks, masked_convolutions, official_masks

_OWN_STATISTICS = "slim_statistics"


class DapperFLParams(FusionParams):
    """Settings of DapperFL; defaults are the paper's (Table 4). Switches are its ablations, what it leaves open, and
    what the authors' public code does."""

    gamma: float = Field(default=0.01, ge=0)
    """Strength of DAR; 0 is the ablation "w/o DAR"."""
    fusion_scope: Literal["trainable", "weights", "all"] = "trainable"
    """Tensors that are fused: trainable parameters; ``.weight`` tensors only (the public code); or BatchNorm's running
    statistics too."""
    skip_round1_fusion: bool = False
    """No fusion with the random initial model, as the public code means to; the paper does."""
    dar_norm: DARNorm = "squared"
    """Measure of length in DAR: squared (Eq. 3), plain (the public code), or squared per feature."""
    dar_in_finetune: bool = True
    """DAR in epoch 1 too, as in the public code; the paper does not say."""
    recovery: Recovery = "global"
    """Stand-in for dropped coordinates: the previous global model (Eq. 6), zero (the public code), or nothing, so that
    only holders count."""
    bn_statistics: Literal["dense_epoch", "slim", "recalibrate"] = "dense_epoch"
    """Running statistics that are sent: those of the last dense epoch, all channels; those of the slim model; or the
    received model's, measured on the client's images before training. None are where
    ``dapper_args.personal_layers`` keeps them with the client, which remembers those of its slim model."""
    carry_momentum: bool = True
    """Transfer of the kept channels' momentum, or whatever the optimizer remembers, from the dense epoch."""

    def fusion_weight(self, round_: int) -> float:
        return 0.0 if self.skip_round1_fusion and round_ == 1 else super().fusion_weight(round_)


class DapperFL(Method[DapperFLParams]):
    """Model-fusion pruning, domain-adaptive regularisation, heterogeneous aggregation."""

    name = "dapperfl"
    Params = DapperFLParams
    slims = True
    allows_personal_layers = True
    scopes = ("internal", "grouped", "official_mask")
    cost_note = (
        "the download and the first local epoch are dense on every client. Peak memory and downlink of weak clients are"
        " therefore not reduced; the savings are the uplink and the compute of the later epochs."
    )

    remedy = "set dapper_args.params.dapperfl.gamma to 0, which leaves DAR out"

    def __init__(self, params: DapperFLParams, problem: Problem) -> None:
        self.needs_representations = params.gamma > 0 or problem.pruning.scope == "official_mask"
        self.recovery = params.recovery
        super().__init__(params, problem)
        if problem.pruning.scope == "official_mask" and (params.recovery, params.bn_statistics) != ("zero", "slim"):
            raise ConfigError(
                "dapper_args.pruning.scope: official_mask uploads masked dense models, which only fits"
                " `recovery: zero` and `bn_statistics: slim` in dapper_args.params"
            )
        if problem.pruning.scope == "official_mask" and not masked_convolutions(problem.backbone):
            raise ConfigError(
                "dapper_args.pruning.scope: official_mask sets weights of convolutions of images behind the first to"
                f" zero, and {problem.backbone.label} has none; choose auto, internal or grouped"
            )

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """Algorithm 1: fine-tune (epoch 1), fuse, prune, train the slim model (epochs 2 to E), send it."""
        params = self.params
        model = self.load(client, downlink)
        statistics = recalibrate(model, client.data, client.device) if params.bn_statistics == "recalibrate" else {}
        training = LocalTraining(client, downlink.round, self.problem.training)
        optimizer = training.optimizer(model)
        loss = self.objective(client, downlink)
        after_step = None

        # Epoch 1: the dense model, which is then fused with the received one
        training.epoch(model, optimizer, loss if params.dar_in_finetune else self.problem.task_loss)
        self._fuse(model, downlink)

        # Pruning, by the fused weights
        plan = self._plan(model, client.profile.ratio)
        if self.problem.pruning.scope == "official_mask":
            masks = official_masks(model, client.profile.ratio)
            after_step = partial(apply_masks, model, masks)
            after_step()
        elif plan is not DENSE:
            if params.bn_statistics == "dense_epoch":
                statistics = running_statistics(model)
            if self.personal:  # what the dense epoch made of channels that are cut now is all there is of them
                self.keep_personal(client, model.state_dict(), DENSE)
            model, optimizer = self._slimmed(training, model, optimizer, plan)

        # Epochs 2 to E: the slim model, which is sent
        training.epoch(model, optimizer, loss, after_step, times=self.problem.training.epochs - 1)
        if plan is not DENSE:
            client.memory.keep(_OWN_STATISTICS, running_statistics(model))
        statistics = {name: tensor for name, tensor in statistics.items() if name not in self.personal}
        upload = self.upload(client, replace(downlink, plan=self.sendable(plan)), model, training)
        return replace(upload, weights={**upload.weights, **statistics}, unsliced=frozenset(statistics))

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The task's loss + gamma * L_DAR (Eq. 5)."""
        del client, downlink
        params = self.params
        if params.gamma == 0:
            return self.problem.task_loss

        def loss(model: Backbone, batch: Batch) -> Tensor:
            representations = model.encode(batch.inputs)
            task_loss = self.problem.task.loss(model.predict(representations), batch.targets)
            return task_loss + params.gamma * dar(representations, params.dar_norm)

        return loss

    def _fuse(self, model: nn.Module, downlink: Downlink) -> None:
        """w <- alpha W + (1 - alpha) w in place, W as received (Eq. 1-2)."""
        alpha = self.params.fusion_weight(downlink.round)
        if alpha == 0:
            return
        tensors: dict[str, Tensor] = dict(model.named_parameters())
        if self.params.fusion_scope == "weights":
            tensors = {name: tensor for name, tensor in tensors.items() if name.endswith(".weight")}
        elif self.params.fusion_scope == "all":
            tensors |= running_statistics(model, copy=False)
        fuse(tensors, downlink.weights, alpha)

    def _plan(self, model: Backbone, ratio: float) -> PruningPlan:
        """The channels of ``model`` with the largest l1 norm, as many as ``ratio`` leaves."""
        widths = self.problem.widths(ratio)
        return plan_by_importance(self.problem.layout, model.state_dict(), widths) if widths else DENSE

    def _slimmed(
        self, training: LocalTraining, dense: Backbone, dense_optimizer: torch.optim.Optimizer, plan: PruningPlan
    ) -> tuple[Backbone, torch.optim.Optimizer]:
        """The slim model that ``plan`` leaves of ``dense``, and its optimizer, with the kept channels' momentum."""
        layout = self.problem.layout
        model = slim_model(dense, layout, plan)
        optimizer = training.optimizer(model)
        if self.params.carry_momentum:
            carry_optimizer_state(dense_optimizer, dense, optimizer, model, layout, plan)
        return model, optimizer

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        """Check how many channels stay and what is sent whole, as the level has it; which channels, the client
        chooses."""
        widths = self.problem.widths(server.profiles[upload.client_id].ratio)
        if upload.plan.omitted != self.personal or upload.plan.widths != widths:
            raise ProtocolError("upload's widths are not those of its client's capability level")
        if upload.unsliced != self._sent_whole(widths):
            raise ProtocolError("upload's tensors sent whole are not those that `bn_statistics` asks for")

    def personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The model a client uses, with its own running statistics where it is slim; those that were sent fit the dense
        one. Where clients keep their norms, it is what the level carries, of which the client has trained them."""
        model = self.load(client, downlink)
        if downlink.plan.kept:
            put_tensors(model, client.memory.recall(_OWN_STATISTICS))
        elif self.personal:
            model = slim_model(model, self.problem.layout, self._plan(model, client.profile.ratio))
        return model

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The server's model without the channels of least l1 norm, as a client would cut it before it trains on."""
        model = self.global_model(server)
        ratio = self.problem.ratios[level - 1]
        if self.problem.pruning.scope == "official_mask":
            apply_masks(model, official_masks(model, ratio))
            return model
        return slim_model(model, self.problem.layout, self._plan(model, ratio))

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """One dense epoch, then the epochs of the slim model; with masks all are dense."""
        later = self._plan(self.problem.backbone, profile.ratio)
        once = (forward_only(DENSE),) if self.params.bn_statistics == "recalibrate" else ()
        return (*once, Phase(1, (Pass(DENSE),)), Phase(self.problem.training.epochs - 1, (Pass(later),)))

    def footprint(self, ratio: float) -> Footprint:
        widths = self.problem.widths(ratio)
        unsliced = self._sent_whole(widths) if widths else ()
        return footprint(self.problem.layout, widths, unsliced=unsliced, personal=self.personal)

    def _sent_whole(self, widths: Widths) -> frozenset[str]:
        """Names of the running statistics that a client of ``widths`` sends of all channels."""
        whole = bool(widths) if self.params.bn_statistics == "dense_epoch" else self.params.bn_statistics != "slim"
        return (
            frozenset(running_statistics(self.problem.backbone, copy=False)) - self.personal if whole else frozenset()
        )
