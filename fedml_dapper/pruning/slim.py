"""Physically smaller networks: models, tensors and optimizer state cut down to a plan's channels."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedml_dapper.models import Backbone
from fedml_dapper.profiling import part
from fedml_dapper.pruning.layout import ChannelLayout, TensorSpec
from fedml_dapper.pruning.plan import PruningPlan, Tensors

BackboneT = TypeVar("BackboneT", bound=Backbone)


class KeptIndices:
    """For each tensor, axis -> entries that stay under a plan; found once per axis, since many tensors share theirs."""

    def __init__(self, plan: PruningPlan) -> None:
        self._plan = plan
        self._found: dict[tuple[str, int], Tensor] = {}

    def of(self, spec: TensorSpec) -> dict[int, Tensor]:
        """The axes of a tensor that the plan cuts."""
        return {axis.dim: self._entries(axis.group, axis.repeat) for axis in spec.axes if axis.group in self._plan.kept}

    def _entries(self, group: str, repeat: int) -> Tensor:
        if (group, repeat) not in self._found:
            channels = self._plan.kept[group]
            self._found[group, repeat] = (channels[:, None] * repeat + torch.arange(repeat)).flatten()
        return self._found[group, repeat]


def slim_tensor(tensor: Tensor, spec: TensorSpec, kept: KeptIndices) -> Tensor:
    """``tensor`` with only the kept channels; the same object where the plan does not touch it."""
    for dim, indices in kept.of(spec).items():
        tensor = tensor.index_select(dim, indices.to(tensor.device))
    return tensor


@part("pruning")
def slim_tensors(
    tensors: Tensors, layout: ChannelLayout, plan: PruningPlan, unsliced: Collection[str] = ()
) -> dict[str, Tensor]:
    """Every tensor cut to ``plan``, but for those named in ``unsliced``."""
    kept = KeptIndices(plan)
    return {
        name: tensor if name in unsliced else slim_tensor(tensor, layout.tensors[name], kept)
        for name, tensor in tensors.items()
    }


@part("pruning")
def slim_model(model: BackboneT, layout: ChannelLayout, plan: PruningPlan) -> BackboneT:
    """A new, smaller model that holds only the kept channels of ``model``, in the same training mode."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    slim = copy.deepcopy(model, shared)  # new modules around the dense tensors, each of which is replaced below
    kept = KeptIndices(plan)
    for module_name, module in slim.named_modules():
        prefix = f"{module_name}." if module_name else ""
        for name, parameter in module.named_parameters(recurse=False):
            cut = slim_tensor(parameter.detach(), layout.tensors[prefix + name], kept)
            setattr(module, name, nn.Parameter(cut.clone(), parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, slim_tensor(buffer, layout.tensors[prefix + name], kept).clone())
        _match_attributes(module)
    return slim


@part("pruning")
def carry_optimizer_state(
    dense: torch.optim.Optimizer, dense_model: nn.Module, slim: torch.optim.Optimizer, slim_model: nn.Module,
    layout: ChannelLayout, plan: PruningPlan,
) -> None:  # fmt: skip
    """Give ``slim`` what ``dense`` remembers of every parameter: momenta and means of squares, of its shape, cut
    to the kept channels, and the number of steps as it is."""
    kept, slim_parameters = KeptIndices(plan), dict(slim_model.named_parameters())
    for name, parameter in dense_model.named_parameters():
        for key, value in dense.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                is_cut = value.shape == parameter.shape
                carried = slim_tensor(value, layout.tensors[name], kept) if is_cut else value
                slim.state[slim_parameters[name]][key] = carried.clone()


def _match_attributes(module: nn.Module) -> None:
    """Make a layer's declared sizes agree with its tensors, so that it prints and serialises as what it is."""
    if isinstance(module, nn.Conv2d):
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
        module.num_features = len(module.weight)
