"""Networks that a user might bring: cut right or left whole, in both scopes and at every level."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedml_dapper.errors import ConfigError
from fedml_dapper.models import adopt
from fedml_dapper.models.substitution import run_with
from fedml_dapper.pruning import (
    Axis,
    ChannelLayout,
    PruningPlan,
    RecoveringMean,
    Widths,
    plan_by_importance,
    slim_model,
    solve_widths,
    trace_layout,
    verify_layout,
)
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import Scope
from fedml_dapper.pruning.slim import KeptIndices
from tests.grids import sampled
from tests.pruning.networks import NETWORKS, build, example

EVERY_KIND = sampled(NETWORKS, always=[name for name in NETWORKS if name != "resnet50"])
"""The one that may wait has 23 million parameters, and blocks that are resnext's, too."""
RATIOS = (0.2, 0.4, 0.6, 0.8)
SCOPES: tuple[Scope, ...] = ("internal", "grouped")
LEFT_WHOLE = {
    ("vision_transformer", "grouped"): ["conv_proj"],
    ("hard_coded", "internal"): ["conv2"],
    ("hard_coded", "grouped"): ["conv2"],
    ("own_attention", "grouped"): ["patches"],
    ("unbound", "grouped"): ["patches"],
    ("windows", "grouped"): ["patches"],
    ("gated", "internal"): ["between"],
    ("gated", "grouped"): ["between"],
}
"""Layers whose channels cannot be followed, by network and scope; nowhere else any."""


@cache
def traced(name: str, scope: Scope) -> tuple[nn.Module, ChannelLayout]:
    model = build(name).eval()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(5)
        for tensor in model.parameters():  # no zeros, as in torchvision's heads, nor ones
            tensor.add_(0.05 * torch.randn_like(tensor))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif buffer_name.endswith("running_var"):
                buffer.uniform_(0.7, 1.4)
    return model, trace_layout(model, example(name), scope)


def inputs(name: str) -> Tensor:
    generator, one = torch.Generator().manual_seed(7), example(name)
    if one.is_floating_point():
        return torch.randn(3, *one.shape[1:], generator=generator)
    return torch.randint(0, 50, (3, *one.shape[1:]), generator=generator)


def widths_at(layout: ChannelLayout, ratio: float) -> Widths:
    """The widths of a level, or where its budget is out of reach, of one that drops as many channels."""
    try:
        return solve_widths(layout, ratio, "parameters")
    except ConfigError as error:
        if "no channel of this network can be cut" in str(error):
            return {}
        if "smallest share of this scope" not in str(error):
            raise
        return solve_widths(layout, ratio, "channels")


def silenced(model: nn.Module, layout: ChannelLayout, plan: PruningPlan, x: Tensor) -> Tensor:
    """Outputs of the dense network when what reads dropped channels reads zeros instead.

    Layer norms are taken over the kept channels, which is what they are in a slim network.
    """
    kept, hooks = KeptIndices(plan), []
    dropped = {name: kept.of(spec) for name, spec in layout.tensors.items()}

    def mask(size: int, entries: Tensor) -> Tensor:
        return torch.zeros(size).index_fill_(0, entries, 1)

    masked = {}
    for name, tensor in model.state_dict().items():
        masked[name] = tensor.clone()
        for dim, entries in dropped[name].items():
            shape = [-1 if each == dim else 1 for each in range(tensor.dim())]
            masked[name] *= mask(tensor.shape[dim], entries).view(shape)
    for name, layer in model.named_modules():
        entries = dropped.get(f"{name}.weight", {}).get(0)
        if isinstance(layer, nn.LayerNorm) and entries is not None:

            def renormed(layer: nn.LayerNorm, given: tuple[Tensor], _: Tensor, entries: Tensor = entries) -> Tensor:
                (x,) = given
                part = nn.functional.layer_norm(
                    x[..., entries], (len(entries),), layer.weight[entries], layer.bias[entries], layer.eps
                )
                return torch.zeros_like(x).index_copy_(-1, entries, part)

            hooks.append(layer.register_forward_hook(renormed))
    outputs: Tensor = run_with(model, masked, (x,))
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_slim_is_silenced_dense_at_every_level(name: str, scope: Scope) -> None:
    model, layout = traced(name, scope)
    x = inputs(name)
    dense = model(x)
    for ratio in RATIOS:
        plan = plan_by_importance(layout, model.state_dict(), widths_at(layout, ratio))
        slim = slim_model(model, layout, plan)
        expected, outputs = silenced(model, layout, plan, x), slim(x)
        assert (outputs - expected).abs().max() <= 1e-5 * max(1, float(expected.abs().max()))
        assert not plan.kept or not torch.allclose(expected, dense, rtol=1e-3)
        assert sum(parameter.numel() for parameter in slim.parameters()) == count_parameters(layout, plan.widths)
        specs = {key: layout.tensors[key].shape_at(plan.widths) for key in layout.tensors}
        assert {key: tuple(tensor.shape) for key, tensor in slim.state_dict().items()} == specs


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_what_cannot_be_followed_is_left_whole_and_said(name: str, scope: Scope) -> None:
    _, layout = traced(name, scope)
    layers = LEFT_WHOLE.get((name, scope), [])
    assert len(layout.notes) == len(layers)
    for note, layer in zip(layout.notes, layers, strict=True):
        assert f"`{layer}`" in note.partition(" not cut")[0]
        assert layer not in layout.groups


def counted(model: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates by torch's own counter, which sees neither norms nor torch's fused attention."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_macs_are_those_of_torchs_counter(name: str, scope: Scope) -> None:
    model, layout = traced(name, scope)
    norms = [key for key, spec in layout.tensors.items() if len(spec.shape) == 1]
    for ratio in (0.0, 0.4):
        widths = widths_at(layout, ratio)
        slim = slim_model(model, layout, plan_by_importance(layout, model.state_dict(), widths))
        assert count_macs(layout, widths, norms) == pytest.approx(counted(slim, example(name)), rel=0.01)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_uploads_are_recovered_where_they_belong(name: str, scope: Scope) -> None:
    """One upload of what a slim model holds, and all else as it was: every entry back in its place."""
    model, layout = traced(name, scope)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plan = plan_by_importance(layout, before, widths_at(layout, 0.4))
    slim = slim_model(model, layout, plan)
    sent = {key: tensor + 1 if tensor.is_floating_point() else tensor for key, tensor in slim.state_dict().items()}
    mean = RecoveringMean(before, layout, "holders")
    mean.add(sent, plan, 3)
    after, kept = mean.result(), KeptIndices(plan)
    for key, tensor in before.items():
        places = torch.arange(tensor.numel()).view(tensor.shape)
        for dim, entries in kept.of(layout.tensors[key]).items():
            places = places.index_select(dim, entries)
        expected = tensor.clone().flatten()
        expected[places.flatten()] = sent[key].flatten()
        assert torch.equal(after[key].flatten(), expected)
        assert torch.equal(slim.state_dict()[key].flatten(), tensor.flatten()[places.flatten()])


@pytest.mark.parametrize("name", ["shared", "resnext", "transformer", "group_norm_resnet"])
def test_slim_networks_train_and_serialise(name: str) -> None:
    model, layout = traced(name, "grouped")
    plan = plan_by_importance(layout, model.state_dict(), widths_at(layout, 0.6))
    slim = slim_model(model, layout, plan).train()
    optimizer = torch.optim.SGD(slim.parameters(), 0.01)
    slim(inputs(name)).square().mean().backward()
    optimizer.step()
    again = slim_model(model, layout, plan)
    again.load_state_dict(slim.state_dict())
    torch.testing.assert_close(again.eval()(inputs(name)), slim.eval()(inputs(name)))


def test_a_shared_weight_is_cut_once_and_stays_shared() -> None:
    model, layout = traced("shared", "grouped")
    slim = slim_model(model, layout, plan_by_importance(layout, model.state_dict(), widths_at(layout, 0.6)))
    assert slim.get_parameter("left.weight") is slim.get_parameter("right.weight")
    assert layout.tensors["left.weight"].axes == layout.tensors["right.weight"].axes != ()
    assert layout.tensors["left.weight"].trainable
    assert not layout.tensors["right.weight"].trainable


def test_inner_channels_of_separable_blocks_are_internal() -> None:
    _, layout = traced("mobilenet_v2", "internal")
    group = layout.groups["features.2.conv.0.0"]
    assert group.producers == ("features.2.conv.0.0.weight", "features.2.conv.1.0.weight")  # expanding, depthwise
    assert "features.2.conv.2" not in layout.groups  # into the residual stream
    gated = traced("mobilenet_v3_small", "internal")[1].groups["features.4.block.0.0"]
    assert "features.4.block.2.fc2.weight" in gated.producers  # squeeze and excite


def test_attention_loses_whole_heads() -> None:
    model, layout = traced("vision_transformer", "internal")
    name = "encoder.layers.encoder_layer_0.self_attention"
    assert layout.groups[name].channels == 8
    slim = slim_model(model, layout, PruningPlan({name: torch.tensor([1, 4, 6])}))
    attention = slim.get_submodule(name)
    assert isinstance(attention, nn.MultiheadAttention)
    assert attention.num_heads == 3
    assert attention.in_proj_weight.shape == (3 * 3 * 8, 64)


def test_layers_say_what_they_are() -> None:
    model, layout = traced("up_and_down", "grouped")
    slim = slim_model(model, layout, plan_by_importance(layout, model.state_dict(), widths_at(layout, 0.6)))
    plain, slope, depthwise, norm, grouped = (slim.get_submodule(f"up.{layer}") for layer in range(5))
    width = plain.out_channels
    assert width < 18
    assert slope.num_parameters == depthwise.groups == depthwise.out_channels == norm.num_features == width
    assert grouped.groups == grouped.in_channels // 3 == grouped.out_channels // 2 == width // 3


@pytest.mark.parametrize("name", ["mobilenet_v2", "hard_coded", "transformer"])
def test_tracing_and_verifying_leave_everything_as_it_was(name: str) -> None:
    model = build(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    layout = trace_layout(model, example(name), "grouped")
    verify_layout(model, layout, {0.0: {}, 0.4: widths_at(layout, 0.4)}, example(name))
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def with_axes(layout: ChannelLayout, tensor: str, *axes: Axis) -> ChannelLayout:
    return replace(layout, tensors={**layout.tensors, tensor: replace(layout.tensors[tensor], axes=axes)})


def test_a_wrong_layout_is_found_and_the_layer_named() -> None:
    """The mistake of reading a channels-last flatten as if channels came first."""
    model, layout = traced("channels_last", "grouped")
    assert layout.tensors["head.weight"].axes[0].entries is not None
    wrong = with_axes(layout, "head.weight", Axis(1, "features.6", 16))
    with pytest.raises(ConfigError, match=r"pruned by ratio 0.5 its outputs are not the dense network's in `head`;"):
        verify_layout(model, wrong, {0.0: {}, 0.5: {"features.6": 10}}, example("channels_last"))


def test_a_slim_network_that_fails_is_named_with_what_torch_said() -> None:
    model, layout = traced("sequential", "grouped")
    wrong = with_axes(layout, "12.weight")  # reads all channels still
    with pytest.raises(
        ConfigError, match=r"pruned by ratio 0.5 it fails \(RuntimeError: .*mat1 .*\) in `12`"
    ) as caught:
        verify_layout(model, wrong, {0.5: {"10": 20}}, example("sequential"))
    assert "\n" not in str(caught.value)


def test_networks_that_cannot_run_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"cannot be followed on an example .*shape \(1, 2, 64\)") as caught:
        trace_layout(build("sequential"), example("one_dimensional"), "internal")
    assert "\n" not in str(caught.value)


class NamedLikeOurs(nn.Module):
    """Layers whose names are methods of a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.encode = nn.Linear(12, 8), nn.Linear(8, 6)
        self.predict = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encode(torch.relu(self.both(x.flatten(1))))
        logits: Tensor = self.predict(torch.relu(hidden))
        return logits


def test_layers_may_be_called_as_a_backbone_s_methods_are() -> None:
    backbone = adopt(NamedLikeOurs(), torch.randn(2, 3, 2, 2))
    assert set(trace_layout(backbone, torch.randn(2, 3, 2, 2), "grouped").groups) == {"both", "encode"}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_the_shapes_of_its_tensors_say_how_wide_it_is(name: str, scope: Scope) -> None:
    _, layout = traced(name, scope)
    for ratio in (0, *RATIOS):
        widths = {} if ratio == 0 else widths_at(layout, ratio)
        shapes = {tensor: spec.shape_at(widths) for tensor, spec in layout.tensors.items()}
        cut = {group: width for group, width in widths.items() if width < layout.groups[group].channels}
        assert layout.widths_of(shapes) == cut
    tensor = max(layout.tensors, key=lambda tensor: len(layout.tensors[tensor].shape))
    first, *others = layout.tensors[tensor].shape
    assert layout.widths_of({**shapes, tensor: (first + 1, *others)}) is None
    assert layout.widths_of({**shapes, "of another": (1,)}) is None
