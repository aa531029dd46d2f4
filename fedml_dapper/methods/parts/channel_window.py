"""What HeteroFL and FedRolex share: windows of consecutive channels, masked cross-entropy, static BatchNorm.

Per coordinate, the server averages over the clients that held it, and keeps what nobody held. Three parts of the
originals need a word here:

* Masked cross-entropy: logits of classes that a client has no image of are set to zero, so that its training says
  nothing about them. The originals also leave those rows of the predictor out of the average; here they are averaged
  as received, since nothing but weight decay moved them.
* Static BatchNorm: training uses batch statistics only, and the statistics for testing are measured afterwards. The
  originals measure them once, at the end, with the dense global model on every client, more than a weak client can
  run. Here each client measures its own trained slim model, in every round (``bn_statistics``).
* The scaler, which divides each convolution's output by the client's width share: in these backbones a BatchNorm
  follows every convolution and in training divides any constant factor out again, so there is nothing to add.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    LocalTraining,
    Loss,
    Method,
    MethodParams,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.batchnorm import recalibrate
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import PruningPlan, Tensors, plan_window


class WindowParams(MethodParams):
    """Settings of the methods that slim by windows."""

    masked_loss: bool = True
    """Logits of classes that the client has no image of are zeroed in training."""
    bn_statistics: Literal["slim", "recalibrate"] = "recalibrate"
    """Which running statistics are sent: those measured in one pass over the client's un-augmented images after
    training (static BatchNorm), or those tracked during training."""


class WindowMethod(Method[WindowParams]):
    """Sub-models of consecutive channels, averaged over their holders; subclasses say where the window starts."""

    Params = WindowParams
    slims = True
    slim_downlink = True
    way_out = "switch masked_loss off in dapper_args.params"

    def __init__(self, params: WindowParams, problem: Problem) -> None:
        self.needs_labels = self.needs_representations = params.masked_loss
        super().__init__(params, problem)

    def window_start(self, round_: int) -> int:
        """First channel that is kept in ``round_``, from 0; taken modulo each group's number of channels."""
        raise NotImplementedError

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, self.window_start(server.round + 1))

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The task's loss, over the client's own classes if so set."""
        if not self.params.masked_loss:
            return super().objective(client, downlink)
        labels = client.data.labels
        assert labels is not None, "check_clients sees to that"
        absent = torch.ones(self.problem.backbone.predictor.out_features, dtype=torch.bool)
        absent[labels.cpu()] = False
        if not absent.any():
            return super().objective(client, downlink)
        absent = absent.to(client.device)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            return self.problem.task.loss(zeroed(model(batch.inputs), absent), batch.targets)

        return loss

    def upload(
        self, client: ClientContext, downlink: Downlink, model: Backbone, training: LocalTraining,
        extras: Tensors | None = None,
    ) -> Upload:  # fmt: skip
        if self.params.bn_statistics == "recalibrate":
            statistics = recalibrate(model, client.data, client.device)
            model.load_state_dict({**model.state_dict(), **statistics})
        return super().upload(client, downlink, model, training, extras)

    @property
    def takes_robust_means(self) -> bool:
        return True

    def aggregation(self, server: ServerState) -> Aggregation:
        return RecoverAndAverage(server, self.problem, "holders")


def zeroed(logits: Tensor, absent: Tensor) -> Tensor:
    """(B, C) ``logits`` in which the columns marked in ``absent``, bool (C,), are zeroed."""
    return logits.masked_fill(absent, 0)
