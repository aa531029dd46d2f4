"""FDSE's layers in two parts: counts, shapes and roles by hand."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.parts.decomposition import (
    Activation,
    DecomposedLayer,
    decompose,
    decomposed_layers,
    roles_of,
    undecomposed_layers,
)
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.pruning import trace_layout
from fedml_dapper.pruning.footprint import count_bytes, count_macs, count_parameters


def black(side: int) -> torch.Tensor:
    return torch.zeros(1, 3, side, side)


def network(name: str, width: int, side: int = 32) -> Backbone:
    return build_backbone(ModelArgs(model=name, width=width), 10, 1, example_image(side))


def test_counts_of_alexnet_are_the_published_ones() -> None:
    """FDSE, Table 4: 0.65e7 parameters, 24.87 MB, 2.24e10 multiply-accumulates for 50 images of 256 x 256."""
    layout = trace_layout(
        decompose(build_backbone(ModelArgs(model="alexnet"), 10, 1, example_image(256)), example_image(256)),
        example_image(256),
        None,
    )
    assert count_parameters(layout, {}) == 6_508_010
    assert count_bytes(layout, {}) / 2**20 == pytest.approx(24.86, abs=0.005)
    assert count_bytes(layout, {}) / 2**20 == pytest.approx(24.87, rel=0.01)
    assert 50 * count_macs(layout, {}) == pytest.approx(2.22e10, abs=0.005e10)
    assert 50 * count_macs(layout, {}) == pytest.approx(2.24e10, rel=0.01)
    layer = {
        name.removeprefix("features.1.conv."): spec for name, spec in layout.tensors.items() if "s.1.conv." in name
    }
    assert layer["dfe.weight"].shape == (96, 64, 5, 5)
    assert layer["dse.weight"].shape == (96, 1, 3, 3)


def test_a_5x5_layer_of_64_channels_by_hand() -> None:
    layer = DecomposedLayer(nn.Conv2d(64, 64, 5), nn.BatchNorm2d(64), 2, "none", shortcut=True)
    sizes = {name: tensor.numel() for name, tensor in layer.named_parameters()}
    assert sizes["dfe.weight"] + sizes["dfe.bias"] == 51_232
    others = {name: size for name, size in sizes.items() if "dfe." not in name or "bn" in name}
    assert others == {
        "dse.weight": 288, "bn_dse.weight": 32, "bn_dse.bias": 32, "bias": 64, "bn_dfe.weight": 64, "bn_dfe.bias": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layers"),
    [("alexnet", 7), ("lenet5", 2), ("resnet10", 12), ("resnet18", 20)],
)
def test_every_layer_before_a_batchnorm_is_decomposed_and_no_other(name: str, layers: int) -> None:
    plain = network(name, 3, 64)
    before = {key: tensor.clone() for key, tensor in plain.state_dict().items()}
    model = decompose(plain, example_image(64))
    assert len(decomposed_layers(model)) == layers
    inside = [part for layer in decomposed_layers(model).values() for part in layer.modules()]
    outside = [layer for layer in model.modules() if not any(layer is part for part in inside)]
    assert not any(isinstance(layer, nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d) for layer in outside)
    assert type(model.predictor) is nn.Linear
    images = torch.randn(4, 3, 64, 64)
    assert model.encode(images).shape == plain.encode(images).shape
    assert model.training
    assert plain.state_dict().keys() == before.keys()
    for layer in decomposed_layers(model).values():
        assert layer.dfe.weight.shape[0] == ceil(len(layer.bias) / 2)
    after = model.state_dict()
    untouched = [key for key in after if not key.startswith(tuple(f"{layer}." for layer in decomposed_layers(model)))]
    assert {"predictor.weight", "predictor.bias"} <= set(untouched)
    assert all(torch.equal(after[key], before[key]) for key in untouched)


@pytest.mark.parametrize(
    ("expansion", "shortcut", "core", "made"), [(2, True, 3, 3), (3, True, 2, 4), (2, False, 3, 6)]
)
def test_channels_by_hand(expansion: int, shortcut: bool, core: int, made: int) -> None:
    """Five channels: the core ones first, then those made of each of them in turn, cut at five."""
    layer = DecomposedLayer(
        nn.Conv2d(2, 5, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(5), expansion, "none", shortcut
    )
    assert (layer.dfe.weight.shape, layer.dse.weight.shape) == ((core, 2, 3, 3), (made, 1, 3, 3))
    layer.eval()
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2)
    x = torch.randn(2, 2, 7, 7)
    state = layer.state_dict()
    extracted = F.conv2d(x, state["dfe.weight"], state["dfe.bias"], stride=2, padding=1)
    normalised = normalise(extracted, state, "bn_dse")
    each = made // core
    variants = [F.conv2d(normalised[:, [row // each]], state["dse.weight"][[row]], padding=1) for row in range(made)]
    channels = [*(normalised[:, [row]] for row in range(core if shortcut else 0)), *variants][:5]
    expected = normalise(torch.cat(channels, dim=1) + state["bias"][:, None, None], state, "bn_dfe")
    torch.testing.assert_close(layer(x), expected)


def normalise(x: torch.Tensor, state: dict[str, torch.Tensor], norm: str) -> torch.Tensor:
    keys = ("running_mean", "running_var", "weight", "bias")
    return F.batch_norm(x, *(state[f"{norm}.{key}"] for key in keys))


def test_a_linear_layer_s_eraser_is_a_scale() -> None:
    layer = DecomposedLayer(nn.Linear(4, 6), nn.BatchNorm1d(6), 3, "none", shortcut=True).eval()
    with torch.no_grad():
        layer.dse.weight.copy_(torch.tensor([2.0, 3.0, 5.0, 7.0]).view(4, 1, 1, 1))
        layer.bias.copy_(torch.arange(6.0))
    x = torch.randn(3, 4)
    a, b = (layer.dfe(x) / (1 + 1e-5) ** 0.5).unbind(dim=1)
    expected = torch.stack([a, b, 2 * a, 3 * a, 5 * b, 7 * b], dim=1) + torch.arange(6.0)
    torch.testing.assert_close(layer(x), expected / (1 + 1e-5) ** 0.5)


@pytest.mark.parametrize("is_linear", [True, False])
@pytest.mark.parametrize(("activation", "negative"), [("none", 1.0), ("relu", 0.0), ("leaky", 0.01)])
def test_activation_stands_before_the_eraser_and_not_in_the_shortcut(
    activation: Activation, negative: float, is_linear: bool
) -> None:
    plain, norm = (nn.Linear(1, 2), nn.BatchNorm1d(2)) if is_linear else (nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    layer = DecomposedLayer(plain, norm, 2, activation, shortcut=True).eval()
    for tensor, value in ((layer.dfe.weight, 1.0), (layer.dfe.bias, 0.0), (layer.dse.weight, 10.0)):
        nn.init.constant_(tensor, value)
    found = layer(torch.tensor([-1.0, 1.0]).view(2, 1, *([] if is_linear else [1, 1]))).view(2, 2).tolist()
    assert found[0] == pytest.approx([-1, -10 * negative], abs=1e-3)
    assert found[1] == pytest.approx([1, 10], abs=1e-3)


@pytest.mark.parametrize("name", ["alexnet", "lenet5", "resnet10"])
def test_every_tensor_has_exactly_one_role(name: str) -> None:
    model = decompose(network(name, 3, 64), example_image(64))
    roles = roles_of(model)
    groups = [*roles.consensus, *roles.similarity, roles.statistics, tuple(roles.local)]
    assert sorted(key for group in groups for key in group) == sorted(model.state_dict())
    trainable = {key for key, _ in model.named_parameters()}
    assert {key for group in (*roles.consensus, *roles.similarity) for key in group} == trainable


def test_roles_of_lenet_by_hand() -> None:
    roles = roles_of(decompose(network("lenet5", 6), example_image(32)))
    assert roles.consensus == (
        ("conv1.dfe.weight", "conv1.dfe.bias", "conv1.bias", "conv1.bn_dfe.weight", "conv1.bn_dfe.bias"),
        ("conv2.dfe.weight", "conv2.dfe.bias", "conv2.bias", "conv2.bn_dfe.weight", "conv2.bn_dfe.bias"),
        ("hidden.0.weight", "hidden.0.bias"),
        ("hidden.2.weight", "hidden.2.bias"),
        ("predictor.weight", "predictor.bias"),
    )
    assert roles.similarity[0] == ("conv1.bn_dse.weight", "conv1.bn_dse.bias", "conv1.dse.weight")
    assert roles.statistics[1] == "conv1.bn_dfe.running_var"
    assert "conv2.bn_dse.num_batches_tracked" in roles.local
    single = roles_of(decompose(network("lenet5", 6), example_image(32)), "per_tensor")
    assert (len(single.consensus), len(single.similarity)) == (16, 6)
    assert single.local == roles.local


class Odd(Backbone):
    """The BatchNorm stands before the convolution, so that no layer is followed by one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.predictor = nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3), nn.Linear(2, 10)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(images)).relu().mean(dim=(2, 3))  # type: ignore[no-any-return]


class Positions(Backbone):
    """The first BatchNorm is over positions, which are none of the linear layer's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.over_positions = nn.BatchNorm1d(4)
        self.second = nn.Linear(24, 8)
        self.norm = nn.BatchNorm1d(8)
        self.predictor = nn.Linear(8, 10)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.over_positions(self.first(x)).flatten(1)))  # type: ignore[no-any-return]


def test_a_norm_over_positions_belongs_to_no_layer() -> None:
    x = torch.ones(2, 4, 5)
    model = decompose(Positions(), x)
    assert list(decomposed_layers(model)) == ["second"]
    assert undecomposed_layers(model, x) == ["first"]
    assert model.train()(x).shape == (2, 10)


def test_a_network_without_a_layer_to_decompose_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model_args\.model: .* the network has none"):
        decompose(Odd(), example_image(32))
