"""Networks whose convolutions standardise their own weights; slim ones need no statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs, Norm, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.models.standardised import StandardisedConv2d
from fedml_dapper.pruning import ChannelLayout, PruningPlan, plan_by_importance, slim_model, solve_widths, trace_layout
from fedml_dapper.pruning.layout import Scope
from tests.grids import sampled

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def network(norm: Norm, model: str = "resnet10") -> Backbone:
    """With gains and biases that differ, as after training."""
    backbone = build_backbone(
        ModelArgs(model=model, width=16, norm=norm), 10, 1, example_image(images_for(model).shape[-1])
    )
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return backbone.eval()


def images_for(model: str) -> Tensor:
    """AlexNet pools smaller ones to nothing."""
    return F.interpolate(IMAGES, scale_factor=2) if model == "alexnet" else IMAGES


def written_out(weight: Tensor, gain: Tensor) -> Tensor:
    """The formula, filter by filter, in double precision."""
    filters = []
    for each, g in zip(weight.double(), gain.double(), strict=True):
        count = each.numel()
        mean = each.sum() / count
        deviation = (((each - mean).square().sum() + 1e-6) / count).sqrt()
        filters.append(g * (each - mean) / (deviation * count**0.5) * 1.7139)
    return torch.stack(filters)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_it_convolves_with_the_formula_s_filters(kernel: int, stride: int) -> None:
    torch.manual_seed(1)
    layer = StandardisedConv2d(3, 6, kernel, stride, padding=kernel // 2)
    nn.init.normal_(layer.gain)
    nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    expected = F.conv2d(
        IMAGES.double(),
        written_out(layer.weight, layer.gain),
        layer.bias.double(),
        stride,
        kernel // 2,  # type: ignore[union-attr]
    )
    assert torch.allclose(layer(IMAGES).double(), expected, atol=1e-5)
    scaled = copy.deepcopy(layer)
    with torch.no_grad():
        scaled.weight.mul_(7).add_(1)
    assert torch.allclose(layer(IMAGES), scaled(IMAGES), atol=1e-3)  # only the filters' directions count


@pytest.mark.nightly
def test_activations_keep_their_scale_whatever_the_width() -> None:
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    for width in (8, 64):
        backbone = build_backbone(ModelArgs(model="resnet18", width=width, norm="standardised"), 10, seed=1)
        with torch.no_grad():
            scales = [
                float(backbone.stages[: stage + 1](backbone.stem(images)).square().mean())  # type: ignore[index,operator]
                for stage in range(4)
            ]
        assert all(0.3 < scale < 3 for scale in scales), scales


@pytest.mark.parametrize("model", ["resnet10", "resnet18", "alexnet"])
@pytest.mark.parametrize("scope", ["internal", "grouped"])
@torch.no_grad()
def test_slim_is_silenced_dense(scope: Scope, model: str) -> None:
    """The dense network with plain convolutions by the formula's filters over kept inputs, and zeros elsewhere."""
    backbone, images = network("standardised", model), images_for(model)
    layout = trace_layout(backbone, example_image(images.shape[-1]), scope)
    for ratio in (0.2, 0.4, 0.6, 0.8):
        plan = plan_by_importance(layout, backbone.state_dict(), solve_widths(layout, ratio, "parameters"))
        slim = slim_model(backbone, layout, plan)
        silenced = copy.deepcopy(backbone)
        for name, layer in silenced.named_modules():
            if isinstance(layer, StandardisedConv2d):
                small = slim.get_submodule(name)
                assert isinstance(small, StandardisedConv2d)
                silenced.set_submodule(name, silent_convolution(layer, small, name, layout, plan))
        if scope == "grouped":
            axis = layout.tensors["predictor.weight"].axes[0]
            dropped = torch.ones(silenced.predictor.in_features, dtype=torch.bool)
            dropped[axis.of(plan.kept[axis.group]).flatten()] = False
            silenced.predictor.weight[:, dropped] = 0
        expected = silenced(images)
        assert (slim(images) - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert not torch.allclose(expected, backbone(images), rtol=1e-2)


def silent_convolution(
    dense: StandardisedConv2d, slim: StandardisedConv2d, name: str, layout: ChannelLayout, plan: PruningPlan
) -> nn.Conv2d:
    """A plain convolution of the dense one's shape."""
    places = [torch.arange(size) for size in dense.weight.shape[:2]]
    for axis in layout.tensors[f"{name}.weight"].axes:
        if axis.group in plan.kept:
            places[axis.dim] = plan.kept[axis.group]
    rows, columns = places
    plain = nn.Conv2d(dense.in_channels, dense.out_channels, dense.kernel_size, dense.stride, dense.padding)  # type: ignore[arg-type]
    nn.init.zeros_(plain.weight)
    nn.init.zeros_(plain.bias)  # type: ignore[arg-type]
    plain.weight[rows[:, None], columns] = written_out(slim.weight, slim.gain).float()
    plain.bias[rows] = slim.bias  # type: ignore[index]
    return plain


@pytest.mark.parametrize(("model", "layer"), [("resnet10", "stages.3.0.bn1"), ("alexnet", "features.2.bn")])
def test_groups_of_channels_are_cut_whole(model: str, layer: str) -> None:
    backbone, images = network("group", model), images_for(model)
    layout = trace_layout(backbone, example_image(images.shape[-1]), "internal")
    widths = solve_widths(layout, 0.6, "parameters")
    plan = plan_by_importance(layout, backbone.state_dict(), widths)
    slim = slim_model(backbone, layout, plan)
    norm, whole = slim.get_submodule(layer), backbone.get_submodule(layer)
    assert isinstance(norm, nn.GroupNorm)
    assert isinstance(whole, nn.GroupNorm)
    assert norm.num_channels == 4 * norm.num_groups < whole.num_channels
    assert slim(images).shape == (4, 10)


@pytest.mark.parametrize("model", ["resnet10", "alexnet"])
def test_batch_is_the_network_as_published(model: str) -> None:
    images = images_for(model)
    published, named = (
        build_backbone(ModelArgs(model=model, width=16, **chosen), 10, 1, example_image(images.shape[-1]))  # type: ignore[arg-type]
        for chosen in ({}, {"norm": "batch"})
    )
    assert published.state_dict().keys() == named.state_dict().keys()
    assert torch.equal(published.eval()(images), named.eval()(images))


@pytest.mark.parametrize("model", ["lenet5", "torchvision:resnet18"])
def test_networks_without_a_choice_refuse_it(model: str) -> None:
    with pytest.raises(ConfigError, match=r"^model_args.norm \(group\) needs a "):
        build_backbone(ModelArgs(model=model, norm="group"), 10, seed=1)


@pytest.mark.parametrize(
    "method",
    sampled(
        ["dapperfl", "heterofl", "fedrolex", "feddrop", "fedmp", "nefl", "fjord", "fedecover", "fiarse", "fpl", "moon"]
    ),
)
def test_methods_train_it(tiny_settings: Callable[..., Settings], method: str) -> None:
    few = ("norm=standardised", "client_num_in_total=5", "client_num_per_round=5", "client_share=0.04")
    server, rounds = simulate(build_experiment(tiny_settings(*few, f"method={method}")))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.state.weights.values())
    assert len({client.params for client in rounds[-1].clients}) == (1 if method in ("feddrop", "fpl", "moon") else 5)
