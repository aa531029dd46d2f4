"""What HeteroFL and FedRolex share: masked cross-entropy, slim layers scaled up in training, a mean over holders.

Clients say nothing about classes that they have no image of. Logits of such classes are set to zero in training. Their
rows of the predictor are left out of the average, as in the originals, whose server knows every client's classes. Here
each upload says which it holds (``classes``). Where a robust statistic stands in for the mean
(``dapper_args.defence``), rows count as they were received. ``scaler.py`` scales the layers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    Loss,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.scaler import Scalers, with_scaler
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Footprint, Tensors
from fedml_dapper.pruning.layout import Axis
from fedml_dapper.pruning.running_sum import RunningSum, Sent
from fedml_dapper.pruning.slim import KeptIndices


class MaskedClassesParams(StaticBatchNormParams):
    """Settings of the methods with masked cross-entropy."""

    masked_loss: bool = True
    """Logits of classes that the client has no image of are zeroed in training, and their rows of the predictor left
    out of the average."""


class MaskedClasses(StaticBatchNorm[MaskedClassesParams]):
    """Base of slim methods with this objective; they differ in the channels that they keep."""

    Params = MaskedClassesParams
    slims = True
    slim_downlink = True
    allows_personal_layers = True
    remedy = "switch masked_loss off in dapper_args.params"

    def __init__(self, params: MaskedClassesParams, problem: Problem) -> None:
        self.needs_labels = self.needs_representations = params.masked_loss
        super().__init__(params, problem)

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """Cross-entropy over the client's own classes, of a model whose slim layers are scaled up."""
        return with_scaler(self._masked_loss(client), self._scalers.shares(self.problem.layout, downlink.plan))

    @cached_property
    def _scalers(self) -> Scalers:
        return Scalers.of(self.problem.backbone, self.problem.example, self.problem.layout)

    def _masked_loss(self, client: ClientContext) -> Loss:
        """The task's loss, over the classes that the client has images of if so set."""
        if not self.params.masked_loss:
            return self.problem.task_loss
        absent = ~classes_of(client.data, self.problem.backbone)
        if not absent.any():
            return self.problem.task_loss
        absent = absent.to(client.device)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            return self.problem.task.loss(zeroed(model(batch.inputs), absent), batch.targets)

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of the sub-model, then its statistics on the client's images; the client's classes go along."""
        model = self.load(client, downlink)
        training = self.train_epochs(client, downlink, model, self.objective(client, downlink))
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training, self.held_classes(client))

    def aggregation(self, server: ServerState) -> Aggregation:
        """Each coordinate's mean over the clients that hold it; what nobody holds stays as it is."""
        return self.with_level_statistics(server, self.mean_of_holders(server))

    def held_classes(self, client: ClientContext) -> Tensors:
        """Extras of an upload: which classes the client has images of, ``classes``, bool (C,); none if not set."""
        return {"classes": classes_of(client.data, self.problem.backbone)} if self.params.masked_loss else {}

    def mean_of_holders(self, server: ServerState) -> RecoverAndAverage:
        """The mean of each coordinate over the clients that hold it, of a predictor's row by its class if so set."""
        if self.params.masked_loss and self.problem.defence.aggregation == "mean":
            return AverageHeldClasses(server, self.problem)
        return RecoverAndAverage(server, self.problem, "holders")

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        if not self.params.masked_loss:
            return super().check_extras(server, upload)
        held = upload.extras.get("classes")
        classes = self.problem.backbone.predictor.out_features
        if upload.extras.keys() != {"classes"} or held is None or held.dtype != torch.bool or held.shape != (classes,):
            raise ProtocolError(f"upload's extras are not `classes`, one truth value for each of {classes}")

    def footprint(self, ratio: float) -> Footprint:
        """The slim model's, and up a truth value for each class."""
        cost = super().footprint(ratio)
        classes = self.problem.backbone.predictor.out_features if self.params.masked_loss else 0
        return replace(cost, bytes_up=cost.bytes_up + classes)

    @property
    def takes_robust_means(self) -> bool:
        return True

    @property
    def beyond_sums(self) -> str:
        return "of which classes each client has images (masked_loss)" if self.params.masked_loss else ""

    @property
    def takes_edges(self) -> bool:
        return super().takes_edges and not self.params.masked_loss  # rows of classes have sums of their own


class AverageHeldClasses(RecoverAndAverage):
    """Mean over a coordinate's holders; a row of the predictor is held by those that have images of its class."""

    def __init__(self, server: ServerState, problem: Problem) -> None:
        super().__init__(server, problem, "holders")
        self._rows = dict[str, RunningSum]()
        for name in sorted(problem.backbone.head_tensors):
            spec = problem.layout.tensors[name]
            by_class = replace(spec, axes=(*spec.axes, Axis(dim=0, group="classes")))
            self._rows[name] = RunningSum(by_class, server.weights[name].device)

    def add(self, upload: Upload) -> None:
        super().add(upload)
        held = upload.extras["classes"].nonzero().flatten()
        kept = KeptIndices(upload.plan)
        for name, rows in self._rows.items():
            sent = upload.weights[name].index_select(0, held.to(upload.weights[name].device))
            cuts = {**kept.of(self._layout.tensors[name]), 0: held}
            rows.add(Sent(sent, cuts, 1 if self._uniform else upload.num_samples))

    def close(self) -> None:
        before = self._server.weights
        super().close()
        for name, rows in self._rows.items():
            self._server.weights[name] = rows.mean(before[name], 1, "holders")


def classes_of(data: ClientData, model: Backbone) -> Tensor:
    """Truth values (C,), whether a client has images of each of ``model``'s C classes; its samples have labels."""
    assert data.labels is not None, "Method.check_clients sees to that"
    held = torch.zeros(model.predictor.out_features, dtype=torch.bool)
    held[data.labels.cpu()] = True
    return held


def zeroed(logits: Tensor, absent: Tensor) -> Tensor:
    """(B, C) ``logits`` in which the columns marked in ``absent``, bool (C,), are zeroed."""
    return logits.masked_fill(absent, 0)
