from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import ModelArgs
from fedml_dapper.methods.parts.layers import (
    called_layers,
    head_of,
    layers_of,
    linear_layers,
    modules_of,
    normalised_layers,
    tensors_of,
    train_only,
)
from fedml_dapper.models import Backbone, adopt, build_backbone, example_image

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


class Own(nn.Module):
    """A linear layer of one's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel


class Mixed(nn.Module):
    """Layers of many kinds, with what follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(9, 4)
        self.conv = nn.Conv1d(4, 6, 1)
        self.norm = nn.BatchNorm1d(6)
        self.up = nn.ConvTranspose1d(6, 6, 1)
        self.gate = nn.PReLU(6)
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.layer_norm = nn.LayerNorm((3, 6))
        self.gain = nn.Parameter(torch.ones(1, 1, 6))
        self.own = Own(6, 5)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.gate(self.up(self.norm(input=self.conv(self.word(ids).transpose(1, 2))))).transpose(1, 2)
        x = self.gru(x)[0]
        x = self.layer_norm(self.attention(x, x, x, need_weights=False)[0]) * self.gain
        return self.head(self.own(x).mean(1))  # type: ignore[no-any-return]


def test_layers_of_any_kind_are_layers() -> None:
    ids = torch.ones(1, 3, dtype=torch.int64)
    model = adopt(Mixed(), ids)
    found = {layer.name: layer.tensors for layer in layers_of(model)}
    assert list(found) == ["", "word", "conv", "up", "gru", "attention", "attention.out_proj", "own", "head"]
    assert found["conv"] == ("conv.weight", "conv.bias", *(f"norm.{key}" for key in BN))
    assert found["up"] == ("up.weight", "up.bias", "gate.weight")
    assert {name.rpartition(".")[0] for name in found["head"]} == {"head", "head.parametrizations.weight"}
    assert linear_layers(model, ids) == {"attention.out_proj", "own", "head"}
    assert normalised_layers(model, ids, nn.BatchNorm1d) == {"conv": "norm"}
    assert "attention.out_proj" not in called_layers(model, ids)


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
