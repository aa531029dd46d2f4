"""Tracing of a network's layout: channels are followed in one pass, grouped, and every group is tried out."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, described, moved, tensors_of
from fedml_dapper.models.adopt import bare
from fedml_dapper.models.compiled import uncompiled
from fedml_dapper.models.frozen import MovedAtServer
from fedml_dapper.models.passing import called
from fedml_dapper.models.running import first_line, running, undisturbed
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning.layout import Axis, ChannelLayout, Scope, TensorSpec, Widths, without
from fedml_dapper.pruning.tracing.channels import SPREAD
from fedml_dapper.pruning.tracing.dependencies import plain_layout
from fedml_dapper.pruning.tracing.follower import Follower, Trace
from fedml_dapper.pruning.tracing.graph import FoundGroup, Graph, listed
from fedml_dapper.pruning.tracing.layers import Layers
from fedml_dapper.pruning.tracing.linear_maps import linear_maps
from fedml_dapper.pruning.tracing.operations import Operations
from fedml_dapper.pruning.verification import Fault, Trial

IDLE = (
    "did not run when the network was tried, so it stays whole; should it run in training on channels that are cut,"
    " training fails"
)
"""What notes say of layers that only some batches take."""


@part("pruning")
def trace_layout(
    model: nn.Module, example: Inputs, scope: Scope | None, predictor: nn.Module | None = None
) -> ChannelLayout:
    """Follow the channels of ``model`` through one pass on ``example``, and return the groups that ``scope`` allows.

    Channels form a group if they are cut alike in the same tensors. The channels of the network's output, and of that
    of the predictor, are never cut.

    * ``internal``: groups that are never added to channels of another layer, and that no output layer reads; an output
      layer is the predictor, or produces what the network puts out. In a residual network these are the channels inside
      each block, however many layers they run through (depthwise convolutions, squeeze-and-excite gates), and heads and
      inner widths of attention blocks. So every residual stream and the features z keep their width.
    * ``grouped``: every group, the residual streams too.
    * ``official_mask`` and None: none, since nothing is removed.

    Plain networks have the groups of torch-pruning's dependency graph (``dependencies``); the channels of others are
    followed entry by entry (``follower``). Groups are tried out: a group whose removal makes the slim network fail, or
    differ from the dense one without these channels, is left whole. ``ChannelLayout.notes`` name such groups, and
    channels that could not be followed in the first place.

    Args:
        model: Network to trace; it is not changed.
        example: Input to run it on.
        scope: Which groups may be cut.
        predictor: Output layer; ``model.predictor`` by default, if there is one.

    Raises:
        ConfigError: The network cannot run on ``example``.
    """
    with uncompiled(bare(model)):
        return _traced(model, example, scope, predictor)


def _traced(
    model: nn.Module, example: Inputs, scope: Scope | None, predictor: nn.Module | None = None
) -> ChannelLayout:
    predictor = getattr(model, "predictor", None) if predictor is None else predictor
    output_layer = next((name for name, layer in model.named_modules() if layer is predictor), None)
    example = moved(example, next((tensor.device for tensor in model.parameters()), tensors_of(example)[0].device))
    probe = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()
    try:
        with undisturbed(example):
            trace = follow(probe, example)
    except Exception as error:  # whatever the user's network raises
        raise ConfigError(
            f"model: cannot be followed on an example of {described(example, _look)}:"
            f" {first_line(error)}; check the network and what it is given"
        ) from error
    graph = Graph(trace, list(model.state_dict()), output_layer)
    trainable = {name for name, _ in model.named_parameters()}
    aliases = _aliases(model)
    tensors = {
        name: TensorSpec(
            tuple(tensor.shape),
            tensor.dtype,
            trainable=name in trainable,
            macs_per_element=trace.macs.get(name, 0),
            alias_of=None if aliases[name] == name else aliases[name],
            frozen=isinstance(tensor, nn.Parameter) and not (tensor.requires_grad or isinstance(tensor, MovedAtServer)),
        )
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    whole = ChannelLayout({}, tensors, products=graph.products())
    if scope is None or scope == "official_mask":
        return whole
    with undisturbed(example):
        whole = replace(whole, linear_maps=linear_maps(probe))
    internal = scope == "internal"
    idle = _idle(model, trace.used)
    trial = Trial(model, example, many=bool(idle))
    with undisturbed(example), torch.enable_grad():  # by which torch-pruning finds its way
        last = [] if output_layer is None else [probe.get_submodule(name) for name in sorted(graph.output_layers)]
        plain = None if trace.nameless else plain_layout(whole, probe, example, last, internal)
    if plain is not None and trial.fault(plain, _a_third_less(plain, plain.groups)) is None:
        return _with_idle(plain, _idle(model, trace.used | trial.ran))
    found = [(graph, each) for each in graph.groups(internal)]
    borrowed = list[FoundGroup]()
    if any(hold.why == SPREAD for hold in trace.channels.held):
        with undisturbed(example):
            by_heads = Graph(follow(probe, example, by_heads=True), list(model.state_dict()), output_layer)
        known = {each.group.name for _, each in found}
        heads = [each for each in by_heads.heads(internal, whole.linear_maps) if each.group.name not in known]
        borrowed = [each for each in heads if each.borrower is not None]
        found += [(by_heads, each) for each in heads if each.borrower is None]
        found.sort(key=lambda placed: list(tensors).index(placed[1].group.producers[0]))
    layout = _cut(whole, found, graph)
    told = [each for _, each in found if each.filled] + borrowed
    notes = graph.notes(internal, [producer for each in told for producer in each.group.producers])
    notes += [
        f"`{each.group.name}` not cut: {listed([each.borrower or ''])} uses its weight without calling it"
        for each in borrowed
    ]
    tried = _tried(layout, trial, notes)
    return _with_idle(tried, _idle(model, trace.used | trial.ran))


@torch.no_grad()
def follow(model: nn.Module, example: Inputs, *, by_heads: bool = False) -> Trace:
    """Run ``model`` on ``example`` and follow its channels, with ``by_heads`` through views of heads too."""
    follower = Follower(model, _batch_size(example), by_heads=by_heads)
    with running(model, follower.stack) as ran, Layers(follower), Operations(follower):
        output = called(model, example)
    follower.trace.ran = ran
    follower.channels.settle()
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor) and tensor in follower.marks:
            follower.trace.outputs.append(follower.marks[tensor].ids)
    return follower.trace


def _idle(model: nn.Module, used: Collection[str]) -> list[str]:
    """Return the names of layers with weights that are neither in use nor inside a layer in use.

    Some layers only hand their weights to the one that holds them.
    """
    weighted = [name for name, layer in model.named_modules() if list(layer.parameters(recurse=False))]
    at_work = [name for name in weighted if name in used]
    return [name for name in weighted if not any(name == each or name.startswith(f"{each}.") for each in at_work)]


def _with_idle(layout: ChannelLayout, idle: Sequence[str]) -> ChannelLayout:
    """Return ``layout`` with a note on ``idle`` layers, if channels are cut that these might read."""
    if not idle or not layout.groups:
        return layout
    return replace(layout, notes=(*layout.notes, f"{listed(idle)} {IDLE}"))


def _batch_size(example: Inputs) -> int:
    first = tensors_of(example)[0]
    return len(first) if first.dim() else 1


def _look(part: Tensor) -> str:
    return f"{part.dtype} and shape {tuple(part.shape)}"


def _aliases(model: nn.Module) -> Mapping[str, str]:
    """Every name of a tensor -> its first name."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def _cut(whole: ChannelLayout, groups: Sequence[tuple[Graph, FoundGroup]], graph: Graph) -> ChannelLayout:
    """Return ``whole`` with axes for the ``groups``, each of which comes with the graph that it was found in."""
    axes: dict[str, list[Axis]] = defaultdict(list)
    for found_in, found in groups:
        for name, dim in found.places:
            axes[name] += filter(None, [found_in.axis(found, dim, found_in.bound[name, dim])])
    for name, roots in graph.product_roots().items():
        axes[name] += filter(None, (graph.axis(found, 0, roots) for _, found in groups if not found.filled))

    def placed(spec: TensorSpec, name: str) -> TensorSpec:
        def outputs_first(axis: Axis) -> tuple[bool, int, int]:
            return not graph.produces(name, axis.dim), *_position(axis)

        return replace(spec, axes=tuple(sorted(axes.get(name, ()), key=outputs_first)))

    return replace(
        whole,
        groups={found.group.name: found.group for _, found in groups},
        tensors={name: placed(spec, spec.alias_of or name) for name, spec in whole.tensors.items()},
        products={name: placed(spec, name) for name, spec in whole.products.items()},
    )


def _position(axis: Axis) -> tuple[int, int]:
    return axis.dim, 0 if axis.entries is None else int(axis.entries.index.min())


def _tried(layout: ChannelLayout, trial: Trial, notes: Sequence[str]) -> ChannelLayout:
    """Return the layout without the groups whose removal fails in a trial."""
    faults = _faults(trial, layout, list(layout.groups)) if layout.groups else {}
    tried = [f"`{name}` not cut: without some of its channels {fault}" for name, fault in faults.items()]
    return replace(without(layout, faults) if faults else layout, notes=(*notes, *tried))


def _faults(trial: Trial, layout: ChannelLayout, names: Sequence[str]) -> dict[str, Fault]:
    """Return the groups that cannot be cut, and why, by bisection: all at once, and either half where that fails."""
    fault = trial.fault(layout, _a_third_less(layout, names))
    if fault is None:
        return {}
    if len(names) == 1:
        return {names[0]: fault}
    half = len(names) // 2
    found = {**_faults(trial, layout, names[:half]), **_faults(trial, layout, names[half:])}
    return found or dict.fromkeys(names, fault)


def _a_third_less(layout: ChannelLayout, names: Iterable[str]) -> Widths:
    """Widths for a trial. With a half, a network that splits its channels in two might work by chance."""
    return {name: layout.groups[name].channels - (layout.groups[name].channels + 2) // 3 for name in names}
