"""HeteroFL's scaler: what slim filters give is divided, in training, by the share of its channels that a layer holds.

The next layer adds up fewer channels, which the scaler makes up for. A norm behind the layer divides any constant
factor out again, and standardised filters keep their scale by themselves. Grouped convolutions lose whole groups of
inputs, so that what they add up is as much as before. All other layers have a scaler, such as LeNet's hidden ones; so
have embeddings, and the queries, keys and values of attention, as in the authors' code; of a gate and what it is
multiplied by, each has one. What a network adds to a product itself, such as learnt positions, has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.contract import Loss
from fedml_dapper.methods.parts.layers import called_layers, normalised_layers
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import NORMS
from fedml_dapper.models.plain import RewrittenConv
from fedml_dapper.models.standardised import StandardisedConv2d
from fedml_dapper.pruning import ChannelLayout, PruningPlan
from fedml_dapper.pruning.plan import axis_of

_BIASES = {"weight": "bias", "in_proj_weight": "in_proj_bias"}
"""What torch's layers call the vector that they add to the products of a weight."""


@dataclass(frozen=True)
class Shares:
    """What is divided in a client's model, and by how much."""

    outputs: Mapping[str, float] = field(default_factory=dict)
    """Layer -> divisor of what it puts out."""
    tensors: Mapping[str, float] = field(default_factory=dict)
    """Tensor -> divisor."""


@dataclass(frozen=True)
class Scalers:
    """Where a network has scalers, by the weight whose products they divide."""

    layers: Mapping[str, str]
    """Weight -> the layer that puts out its products, where the network calls one that does nothing else."""
    tensors: Mapping[str, tuple[str, ...]]
    """Weight -> itself and its bias, which are divided where no layer's output can be."""

    @classmethod
    def of(cls, model: Backbone, example: Inputs, layout: ChannelLayout) -> Scalers:
        """Find the scalers that a network of this layout has where it is slim; ``example`` is a batch of inputs."""
        normalised = normalised_layers(model, example, *NORMS)
        called = called_layers(model, example)
        layers = dict[str, str]()
        tensors = dict[str, tuple[str, ...]]()
        for weight in sorted({producer for group in layout.groups.values() for producer in group.producers}):
            name, _, entry = weight.rpartition(".")
            layer = model.get_submodule(name)
            if name in normalised or _keeps_its_scale(layer):
                continue
            if name in called and _only_multiplies(name, layer, layout):
                layers[weight] = name
            else:
                tensors[weight] = tuple(f"{name}.{own}".strip(".") for own in (entry, *_bias_of(layer, entry)))
        return cls(layers, tensors)

    def shares(self, layout: ChannelLayout, plan: PruningPlan) -> Shares:
        """Shares of their channels that ``plan`` leaves the layers that it narrows."""
        shares = {
            weight: _share(layout, plan, group.name, weight)
            for group in (layout.groups[name] for name in plan.kept)
            for weight in group.producers
        }
        return Shares(
            {self.layers[weight]: share for weight, share in shares.items() if weight in self.layers},
            {name: share for weight, share in shares.items() for name in self.tensors.get(weight, ())},
        )


def with_scaler(loss: Loss, shares: Shares) -> Loss:
    """``loss`` of a model that is divided by ``shares``; itself where there are none."""
    if not shares.outputs and not shares.tensors:
        return loss

    def scaled(model: Backbone, batch: Batch) -> Tensor:
        with _dividing_outputs(model, shares.outputs), _dividing_tensors(model, shares.tensors):
            return loss(model, batch)

    return scaled


def _share(layout: ChannelLayout, plan: PruningPlan, group: str, weight: str) -> float:
    spec = layout.tensors[weight]
    dim = axis_of(layout, group, weight).dim
    return spec.shape_at(plan.widths)[dim] / spec.shape[dim]


def _keeps_its_scale(layer: nn.Module) -> bool:
    return isinstance(layer, StandardisedConv2d) or (isinstance(layer, _ConvNd) and layer.groups > 1)


def _only_multiplies(name: str, layer: nn.Module, layout: ChannelLayout) -> bool:
    """Whether the layer, when it is called, puts out what its weight makes of its input, with a bias, and no more."""
    as_torch_does = type(layer).forward.__module__.startswith("torch.") or isinstance(layer, RewrittenConv)
    return name in layout.linear_maps or (isinstance(layer, _ConvNd | nn.Embedding) and as_torch_does)


def _bias_of(layer: nn.Module, weight: str) -> tuple[str, ...]:
    bias = _BIASES.get(weight, "")
    is_known = isinstance(layer, nn.Linear | _ConvNd | nn.MultiheadAttention)
    return (bias,) if is_known and getattr(layer, bias, None) is not None else ()


@contextmanager
def _dividing_outputs(model: nn.Module, shares: Mapping[str, float]) -> Iterator[None]:
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


@contextmanager
def _dividing_tensors(model: nn.Module, shares: Mapping[str, float]) -> Iterator[None]:
    """Let the forward passes made inside find these tensors divided by their shares."""
    places = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in shares]
    try:
        for (layer, entry), share in zip(places, shares.values(), strict=True):
            vars(layer)[entry] = getattr(layer, entry) / share  # found before the parameter, which stays as it is
        yield
    finally:
        for layer, entry in places:
            vars(layer).pop(entry, None)
