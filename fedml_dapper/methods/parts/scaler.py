"""HeteroFL's scaler: what a slim layer gives is divided, in training, by the share of its channels held.

A norm behind the layer divides any constant factor out again, and standardised filters keep their scale by themselves.
So only the other layers have one, such as LeNet's hidden layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.contract import Loss
from fedml_dapper.methods.parts.layers import normalised_layers
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import NORMS
from fedml_dapper.models.standardised import StandardisedConv2d
from fedml_dapper.pruning import ChannelLayout, PruningPlan


def with_scaler(loss: Loss, shares: Mapping[str, float]) -> Loss:
    """``loss`` of a model of which the named layers have scalers, by their ``shares``; itself where there are none."""
    if not shares:
        return loss

    def scaled(model: Backbone, batch: Batch) -> Tensor:
        with dividing(model, shares):
            return loss(model, batch)

    return scaled


def layers_without_norm(model: Backbone, example: Inputs) -> frozenset[str]:
    """Layers whose outputs reach the next one on the scale that they have; ``example`` is a batch of inputs."""
    scaling = {
        name for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and not isinstance(layer, StandardisedConv2d)
    }  # fmt: skip
    return frozenset(scaling - normalised_layers(model, example, *NORMS).keys())


def shares_of(layout: ChannelLayout, plan: PruningPlan, layers: Collection[str]) -> dict[str, float]:
    """Share of its channels that ``plan`` leaves a layer, for each of ``layers`` that it narrows."""
    groups = (layout.groups[name] for name in plan.kept)
    return {
        layer: len(plan.kept[group.name]) / group.channels
        for group in groups
        for layer in (producer.rpartition(".")[0] for producer in group.producers)
        if layer in layers
    }


@contextmanager
def dividing(model: nn.Module, shares: Mapping[str, float]) -> Iterator[None]:
    """Divide what the named layers give by their share, in the forward passes made inside."""
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _layer, _inputs, output, by=share: output / by)
        for name, share in shares.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
