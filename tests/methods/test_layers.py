from __future__ import annotations

import pytest
import torch
from torch import nn

from fedml_dapper.config import ModelArgs
from fedml_dapper.methods.parts.layers import head_of, layers_of, modules_of, tensors_of, train_only
from fedml_dapper.models import Backbone, build_backbone, example_image

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def backbone(name: str, width: int = 2) -> Backbone:
    return build_backbone(ModelArgs(model=name, width=width), 5, seed=1, example=example_image(64))


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("lenet5", ["conv1", "conv2", "hidden.0", "hidden.2", "predictor"]),
        ("alexnet", [*(f"features.{i}.conv" for i in range(5)), "hidden.0.linear", "hidden.1.linear", "predictor"]),
        (
            "resnet10",
            ["stem.0", "stages.0.0.conv1", "stages.0.0.conv2"]
            + [f"stages.{stage}.0.{layer}" for stage in (1, 2, 3) for layer in ("conv1", "conv2", "shortcut.0")]
            + ["predictor"],
        ),
    ],
)
def test_layers_come_in_the_order_of_the_forward_pass_and_hold_every_tensor(name: str, layers: list[str]) -> None:
    model = backbone(name)
    found = layers_of(model)
    assert [layer.name for layer in found] == layers
    assert [tensor for layer in found for tensor in layer.tensors] == list(model.state_dict())


def test_batchnorm_belongs_to_the_layer_before_it() -> None:
    layers = {layer.name: layer.tensors for layer in layers_of(backbone("resnet10"))}
    shortcut = ("stages.1.0.shortcut.0.weight", *(f"stages.1.0.shortcut.1.{key}" for key in BN))
    assert layers["stages.1.0.shortcut.0"] == shortcut
    hidden = {layer.name: layer.tensors for layer in layers_of(backbone("alexnet"))}["hidden.0.linear"]
    assert hidden == (
        "hidden.0.linear.weight",
        "hidden.0.linear.bias",
        *(f"hidden.0.bn.{key}" for key in BN),
    )
    assert layers_of(nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)))[0].tensors[0] == "0.weight"


def test_modules_are_single_and_found_by_type() -> None:
    model = backbone("lenet5")
    assert [module.name for module in modules_of(model)][:4] == ["conv1", "bn1", "conv2", "bn2"]
    assert tensors_of(model, nn.BatchNorm2d) == {f"{bn}.{key}" for bn in ("bn1", "bn2") for key in BN}
    assert head_of(model) == {"predictor.weight", "predictor.bias"}


def test_what_does_not_train_is_neither_moved_nor_decayed() -> None:
    model = backbone("lenet5")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    for named in (head_of(model), {"conv1.weight"}):
        train_only(model, named)
        for _ in range(2):
            optimizer.zero_grad()
            model.eval()(torch.ones(2, 3, 64, 64)).square().sum().backward()
            optimizer.step()
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        assert changed == set(named)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
