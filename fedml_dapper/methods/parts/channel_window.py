"""What HeteroFL and FedRolex share: windows of consecutive channels, masked classes, static BatchNorm, the scaler.

Per coordinate, the server averages over the clients that held it, and keeps what nobody held.

* Masked classes: see ``masked_classes.py``.
* Static BatchNorm: see ``static_batchnorm.py``.
* The scaler: see ``scaler.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    LocalTraining,
    Loss,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.masked_classes import AverageHeldClasses, classes_of, zeroed
from fedml_dapper.methods.parts.scaler import dividing, layers_without_norm, shares_of
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Footprint, PruningPlan, Tensors, plan_window


class WindowParams(StaticBatchNormParams):
    """Settings of the methods that slim by windows."""

    masked_loss: bool = True
    """Logits of classes that the client has no image of are zeroed in training, and their rows of the predictor left
    out of the average."""


class WindowMethod(StaticBatchNorm[WindowParams]):
    """Sub-models of consecutive channels, averaged over their holders; subclasses say where the window starts."""

    Params = WindowParams
    slims = True
    takes_at_home = True
    slim_downlink = True
    way_out = "switch masked_loss off in dapper_args.params"

    def __init__(self, params: WindowParams, problem: Problem) -> None:
        self.needs_labels = self.needs_representations = params.masked_loss
        super().__init__(params, problem)

    def window_start(self, round_: int) -> int:
        """First channel that is kept in ``round_``, from 0; taken modulo each group's number of channels."""
        raise NotImplementedError

    def footprint(self, ratio: float) -> Footprint:
        """The slim model's, and up a truth value for each class."""
        cost = super().footprint(ratio)
        classes = self.problem.backbone.predictor.out_features if self.params.masked_loss else 0
        return replace(cost, bytes_up=cost.bytes_up + classes)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, self.window_start(server.round + 1))

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The task's loss, over the client's own classes if so set, of a model with scalers."""
        loss = self._masked(client)
        shares = shares_of(self.problem.layout, downlink.plan, self._scaled)
        if not shares:
            return loss

        def scaled(model: Backbone, batch: Batch) -> Tensor:
            with dividing(model, shares):
                return loss(model, batch)

        return scaled

    def _masked(self, client: ClientContext) -> Loss:
        if not self.params.masked_loss:
            return self.problem.task_loss
        absent = ~classes_of(client.data, self.problem.backbone)
        if not absent.any():
            return self.problem.task_loss
        absent = absent.to(client.device)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            return self.problem.task.loss(zeroed(model(batch.inputs), absent), batch.targets)

        return loss

    @cached_property
    def _scaled(self) -> frozenset[str]:
        return layers_without_norm(self.problem.backbone, self.problem.example)

    def upload(
        self, client: ClientContext, downlink: Downlink, model: Backbone, training: LocalTraining,
        extras: Tensors | None = None,
    ) -> Upload:  # fmt: skip
        held = {"classes": classes_of(client.data, self.problem.backbone)} if self.params.masked_loss else {}
        return super().upload(client, downlink, model, training, {**held, **(extras or {})})

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        if not self.params.masked_loss:
            return super().check_extras(server, upload)
        held = upload.extras.get("classes")
        classes = self.problem.backbone.predictor.out_features
        if upload.extras.keys() != {"classes"} or held is None or held.dtype != torch.bool or held.shape != (classes,):
            raise ProtocolError(f"upload's extras are not `classes`, one truth value for each of {classes}")

    @property
    def takes_robust_means(self) -> bool:
        return True

    @property
    def beyond_sums(self) -> str:
        return "of which classes each client has images (masked_loss)" if self.params.masked_loss else ""

    @property
    def takes_edges(self) -> bool:
        return super().takes_edges and not self.params.masked_loss  # rows of classes have sums of their own

    def averaging(self, server: ServerState) -> Aggregation:
        if self.params.masked_loss and self.problem.defence.aggregation == "mean":
            return AverageHeldClasses(server, self.problem)
        return RecoverAndAverage(server, self.problem, "holders")
