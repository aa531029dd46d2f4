"""Convolutions for runtimes that know only torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedml_dapper.config import ModelArgs, Norm
from fedml_dapper.models import build_backbone, with_plain_convolutions
from fedml_dapper.models.plain import RewrittenConv
from fedml_dapper.models.skipping import SkippingConv
from fedml_dapper.models.standardised import StandardisedConv2d


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
def test_a_network_of_plain_ones_gives_the_same(norm: Norm) -> None:
    network = build_backbone(ModelArgs(model="resnet10", width=8, norm=norm), 10, seed=1).eval()
    images, before = torch.randn(2, 3, 16, 16), {name: value.clone() for name, value in network.state_dict().items()}
    plain = with_plain_convolutions(network)
    kinds = {type(layer) for layer in plain.modules() if isinstance(layer, nn.Conv2d)}
    assert kinds == {nn.Conv2d}
    torch.testing.assert_close(plain(images), network(images), rtol=1e-5, atol=1e-5)
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    assert any(isinstance(layer, RewrittenConv) for layer in network.modules())


@pytest.mark.parametrize(
    "layer",
    [
        SkippingConv(4, 6, 1, 2, bias=False),
        SkippingConv(4, 6, 1, (1, 2)),
        StandardisedConv2d(4, 6, 3, 2, padding=1),
        StandardisedConv2d(4, 6, 1, 2),
    ],
)
def test_one_layer_does(layer: RewrittenConv) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    images = torch.randn(2, 4, 9, 8)
    torch.testing.assert_close(layer.plain()(images), layer(images), rtol=1e-5, atol=1e-5)
