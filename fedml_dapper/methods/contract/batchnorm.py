"""BatchNorm's running statistics, which decide much in federated learning on slim models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import count, moved
from fedml_dapper.models import Backbone
from fedml_dapper.models.in_bulk import copies_of
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.process.profiling import part


def running_statistics(model: nn.Module, copy: bool = True) -> dict[str, Tensor]:
    """Running means and variances of every BatchNorm that has them, found by layer type, by their state-dict names."""
    statistics = {}
    for name, layer in model.named_modules():
        if _tracks(layer):
            for key in ("running_mean", "running_var"):
                statistics[f"{name}.{key}"] = layer.get_buffer(key)
    return dict(zip(statistics, copies_of(statistics.values()), strict=True)) if copy else statistics


@torch.no_grad()
@part("forward/backward")
def recalibrate(
    model: Backbone, data: Iterable[Batch], device: torch.device,
    layers: Sequence[BatchNorm] | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Statistics of ``model`` on un-augmented images, as the cumulative average over their batches; no labels.

    With ``layers``, of these alone. All else runs as in evaluation, where the statistics are used: dropout draws
    nothing. The model is given back unchanged. A model without BatchNorm has none, and does not run. Batches of one
    sample measure nothing; where there are no others, the statistics are those that the model has.
    """
    norms: Sequence[BatchNorm] = layers or [layer for layer in model.modules() if _tracks(layer)]
    if not norms:
        return {}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    momenta = [layer.momentum for layer in norms]
    model.eval()
    for layer in norms:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average
    is_measured = False
    for inputs, _ in data:
        if count(inputs) > 1:
            model(moved(inputs, device))
            is_measured = True
    measured = running_statistics(model)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    model.load_state_dict(before)
    return measured if is_measured else running_statistics(model)


def renew_statistics(model: Backbone, data: Iterable[Batch], device: torch.device) -> None:
    """Give ``model``, which is on ``device``, the statistics that :func:`recalibrate` measures on ``data``."""
    put_tensors(model, recalibrate(model, data, device))


def _tracks(layer: nn.Module) -> TypeGuard[BatchNorm]:
    """Whether ``layer`` is a BatchNorm with running statistics, which ``track_running_stats=False`` does without."""
    return isinstance(layer, BatchNorm) and layer.running_mean is not None
