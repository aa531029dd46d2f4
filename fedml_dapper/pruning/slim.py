"""Physically smaller networks: models, tensors and optimizer state cut down to a plan's channels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.models.copying import with_same_tensors
from fedml_dapper.models.in_bulk import copies_of
from fedml_dapper.process.profiling import part
from fedml_dapper.process.transfers import sent_to
from fedml_dapper.pruning.filled import FilledAdapted, FilledLinear, SlimLinearMap
from fedml_dapper.pruning.layer_sizes import match_attributes
from fedml_dapper.pruning.layout import Axis, ChannelLayout, Entries, LinearMap, TensorSpec
from fedml_dapper.pruning.plan import PruningPlan, Tensors

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class KeptIndices:
    """Kept entries of every tensor under a plan, on ``device``.

    They are found, and brought there, once per kind of axis, since many tensors share theirs.
    """

    def __init__(self, plan: PruningPlan, device: torch.device | str = "cpu") -> None:
        self._plan = plan
        self._device = device
        self._found: dict[tuple[object, ...], Tensor] = {}

    def of(self, spec: TensorSpec) -> dict[int, Tensor]:
        """Return axis -> kept entries, sorted, for the axes of a tensor that the plan cuts."""
        if not self._plan.kept:
            return {}
        cut: dict[int, tuple[Axis, ...]] = {}
        for axis in spec.axes:
            if axis.group in self._plan.kept:
                cut[axis.dim] = (*cut.get(axis.dim, ()), axis)
        return {dim: self._entries(spec.shape[dim], axes) for dim, axes in cut.items()}

    def _entries(self, size: int, axes: tuple[Axis, ...]) -> Tensor:
        key = (size, *((axis.group, axis.repeat, axis.entries) for axis in axes))
        if key not in self._found:
            self._found[key] = sent_to(self._find(size, axes), self._device)
        return self._found[key]

    def _find(self, size: int, axes: tuple[Axis, ...]) -> Tensor:
        if len(axes) == 1 and axes[0].entries is None:
            return axes[0].of(self._plan.kept[axes[0].group]).flatten()
        stays = torch.ones(size, dtype=torch.bool)
        # several groups lie side by side, perhaps with entries between them that belong to none
        for axis in axes:
            stays[axis.of(torch.arange(axis.channels(size)))] = False
            stays[axis.of(self._plan.kept[axis.group])] = True
        return stays.nonzero().flatten()


def common_device(tensors: Iterable[Tensor]) -> torch.device:
    """Return the device of the first of ``tensors``, on which the others are too; the CPU where there are none."""
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def slim_tensor(tensor: Tensor, spec: TensorSpec, kept: KeptIndices) -> Tensor:
    """Return ``tensor`` with only the kept channels; the same object where the plan does not touch it."""
    for dim, indices in kept.of(spec).items():
        tensor = tensor.index_select(dim, indices.to(tensor.device))
    return tensor


@part("pruning")
def slim_tensors(
    tensors: Tensors, layout: ChannelLayout, plan: PruningPlan, unsliced: Collection[str] = ()
) -> dict[str, Tensor]:
    """Cut every tensor to ``plan``, except for those named in ``unsliced``."""
    kept = KeptIndices(plan, common_device(tensors.values()))
    return {
        name: tensor if name in unsliced else slim_tensor(tensor, layout.tensors[name], kept)
        for name, tensor in tensors.items()
    }


@part("pruning")
def write_back(whole: Tensors, slim: Tensors, layout: ChannelLayout, plan: PruningPlan) -> dict[str, Tensor]:
    """Return the tensors of ``slim``, cut to ``plan``, in full shape, with what was cut off taken from ``whole``.

    The inverse of :func:`slim_tensors`. Neither argument changes; a tensor that the plan does not touch is that of
    ``slim``.
    """
    kept = KeptIndices(plan)
    return {name: _written_back(whole[name], tensor, kept.of(layout.tensors[name])) for name, tensor in slim.items()}


def _written_back(whole: Tensor, slim: Tensor, cuts: Mapping[int, Tensor]) -> Tensor:
    if not cuts:
        return slim
    full = whole.clone()
    entries = [cuts.get(dim, torch.arange(size)) for dim, size in enumerate(full.shape)]
    full[torch.meshgrid(*entries, indexing="ij")] = slim.detach().to(full.device)
    return full


@part("pruning")
def slim_model(model: ModuleT, layout: ChannelLayout, plan: PruningPlan) -> ModuleT:
    """Return a new, smaller model that holds only the kept channels of ``model``, in the same training mode.

    Tensors that ``model`` shares under several names are shared in the new model too.
    """
    slim = with_same_tensors(model)  # new modules around the dense tensors, each of which is replaced below
    kept = KeptIndices(plan, common_device(model.parameters()))
    modules = list(slim.named_modules())
    replaced = _cut(modules, layout, kept)
    for module_name, module in modules:
        prefix = f"{module_name}." if module_name else ""
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    _put(module, held, name, replaced[id(tensor)])
        if not plan.kept:
            continue  # sizes are what they were
        known = layout.linear_maps.get(module_name)
        if known is not None:
            _fit(module, known, layout.tensors[f"{prefix}{known.matrix}"], kept)
        match_attributes(module)
    return slim


def _cut(modules: Iterable[tuple[str, nn.Module]], layout: ChannelLayout, kept: KeptIndices) -> dict[int, Tensor]:
    """Return what is kept of each tensor of the named ``modules``, by the tensor's identity."""
    values = dict[int, Tensor]()
    whole = dict[int, Tensor]()
    for module_name, module in modules:
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in values:
                spec = layout.tensors.get(f"{module_name}.{name}" if module_name else name)
                dense = tensor.detach()
                # None for a buffer that the state dict leaves out
                values[id(tensor)] = dense if spec is None else slim_tensor(dense, spec, kept)
                if values[id(tensor)] is dense:
                    whole[id(tensor)] = dense
    values.update(zip(whole, copies_of(whole.values()), strict=True))
    for _, module in modules:
        for tensor in module._parameters.values():
            if tensor is not None and not isinstance(values[id(tensor)], nn.Parameter):
                values[id(tensor)] = nn.Parameter(values[id(tensor)], tensor.requires_grad)
    return values


def _put(module: nn.Module, held: dict[str, Any], name: str, tensor: Tensor) -> None:
    """Set an entry of a layer's own tensors, by the layer's own way where it has one, as recurrent layers do."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        held[name] = tensor
    else:
        setattr(module, name, tensor)


def _fit(layer: nn.Module, known: LinearMap, matrix: TensorSpec, kept: KeptIndices) -> None:
    """Make a layer that is a linear map run with what is kept of its matrix."""
    cuts = kept.of(matrix)
    filled = {axis.dim: cuts[axis.dim] for axis in matrix.axes if axis.filled and axis.dim in cuts}
    if isinstance(layer, AdaptedLinear):
        if filled:
            FilledAdapted.take_over(layer, filled.get(known.rows), filled.get(known.columns))
    elif not isinstance(layer, nn.Linear) and cuts:
        SlimLinearMap.take_over(layer, known, matrix.shape, filled)
    elif isinstance(layer, nn.Linear) and filled:
        FilledLinear.take_over(layer, filled)


@part("pruning")
def slim_layout(layout: ChannelLayout, plan: PruningPlan) -> ChannelLayout:
    """Return the layout of what :func:`slim_model` makes, to cut it further: kept channels are numbered anew from 0."""
    kept = KeptIndices(plan)
    groups = {
        name: replace(group, channels=plan.widths.get(name, group.channels)) for name, group in layout.groups.items()
    }
    return replace(
        layout,
        groups=groups,
        tensors={name: _slim_spec(spec, plan, kept) for name, spec in layout.tensors.items()},
        products={name: _slim_spec(spec, plan, kept) for name, spec in layout.products.items()},
    )


def _slim_spec(spec: TensorSpec, plan: PruningPlan, kept: KeptIndices) -> TensorSpec:
    cuts = kept.of(spec)
    axes = tuple(_slim_axis(axis, spec.shape[axis.dim], plan, cuts) for axis in spec.axes)
    return replace(spec, shape=spec.shape_at(plan.widths), axes=axes)


def _slim_axis(axis: Axis, size: int, plan: PruningPlan, cuts: Mapping[int, Tensor]) -> Axis:
    if axis.entries is None or axis.dim not in cuts:
        return axis  # what fills its axis still does
    places = torch.zeros(size, dtype=torch.int64)
    places[cuts[axis.dim]] = torch.arange(len(cuts[axis.dim]))
    entries = axis.of(plan.kept[axis.group]) if axis.group in plan.kept else axis.entries.index
    return replace(axis, entries=Entries(places[entries]))


@part("pruning")
def carry_optimizer_state(
    dense: torch.optim.Optimizer,
    dense_model: nn.Module,
    slim: torch.optim.Optimizer,
    slim_model: nn.Module,
    layout: ChannelLayout,
    plan: PruningPlan,
) -> None:
    """Copy the optimizer state of every parameter from ``dense`` to ``slim``.

    Tensors of a parameter's shape (momenta, second moments) are cut to the kept channels, and step counts are copied:
    all that the optimizers hold that settings can name.
    """
    kept = KeptIndices(plan, common_device(dense_model.parameters()))
    slim_parameters = dict(slim_model.named_parameters())
    for name, parameter in dense_model.named_parameters():
        for key, value in dense.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                is_cut = value.shape == parameter.shape
                carried = slim_tensor(value, layout.tensors[name], kept) if is_cut else value
                slim.state[slim_parameters[name]][key] = carried.clone() if carried is value else carried
