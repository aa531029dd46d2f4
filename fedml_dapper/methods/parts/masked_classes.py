"""Clients that have images of some classes only, and say nothing about the others (HeteroFL's masked cross-entropy).

Logits of classes that a client has no image of are set to zero in training. These rows of the predictor are left out of
the average, as in the originals of HeteroFL and FedRolex, whose server knows every client's classes. Here each upload
says which it holds (``classes``). Where a robust statistic stands in for the mean (``dapper_args.defence``), rows count
as they were received.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedml_dapper.datasets import ClientData
from fedml_dapper.methods.contract import Problem, RecoverAndAverage, ServerState, Upload
from fedml_dapper.models import Backbone
from fedml_dapper.pruning.layout import Axis
from fedml_dapper.pruning.running_sum import RunningSum, Sent
from fedml_dapper.pruning.slim import KeptIndices


def classes_of(data: ClientData, model: Backbone) -> Tensor:
    """Of which of ``model``'s C classes a client has images: bool (C,); its samples have labels."""
    assert data.labels is not None, "Method.check_clients sees to that"
    held = torch.zeros(model.predictor.out_features, dtype=torch.bool)
    held[data.labels.cpu()] = True
    return held


def zeroed(logits: Tensor, absent: Tensor) -> Tensor:
    """(B, C) ``logits`` in which the columns marked in ``absent``, bool (C,), are zeroed."""
    return logits.masked_fill(absent, 0)


class AverageHeldClasses(RecoverAndAverage):
    """The mean over a coordinate's holders; a row of the predictor is held by those that have images of its class."""

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
