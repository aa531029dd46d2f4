"""Adapters as layers of a network: where they stand, what is trained, what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import AdapterArgs, ModelArgs, check
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import Backbone, adopt, take_over
from fedml_dapper.models.adapters import AdaptedLinear, add_adapters, merged
from fedml_dapper.models.copying import with_same_tensors

from .vit import small_vit

IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
PICTURES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def adapted(network: nn.Module | None = None, args: AdapterArgs | None = None, *, moved: bool = True) -> Backbone:
    """A network with adapters; ``moved``: B is no longer zero."""
    backbone = adopt(small_vit() if network is None else network, IMAGE)
    add_adapters(backbone, args or AdapterArgs(rank=4, alpha=8), IMAGE, "the network")
    for layer in layers_of(backbone) if moved else ():
        nn.init.normal_(layer.lora_b, std=0.1)
    return backbone.eval()


def layers_of(backbone: nn.Module) -> Iterator[AdaptedLinear]:
    return (layer for layer in backbone.modules() if isinstance(layer, AdaptedLinear))


def test_a_layer_by_hand() -> None:
    base = nn.Linear(2, 2)
    base.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    base.bias.data = torch.tensor([10.0, 20.0])
    layer = AdaptedLinear.around(base, AdapterArgs(rank=2, alpha=6))
    layer.lora_a.data = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    layer.lora_b.data = torch.tensor([[1.0, 0.0], [1.0, -1.0]])
    # A x = (5, 2); B A x = (5, 3); times 6 / 2
    assert layer(torch.tensor([1.0, 2.0])).tolist() == [1 + 10 + 15, 2 + 20 + 9]
    assert layer.merged().weight.tolist() == [[1 + 3, 6], [3, 1 + 3]]


def test_the_network_starts_as_its_base() -> None:
    base = small_vit().eval()
    before = base(PICTURES)
    assert torch.equal(adapted(base, moved=False)(PICTURES), before)


def test_adapters_norms_and_the_last_layer_are_trained_and_nothing_else() -> None:
    backbone = adapted()
    trained = {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}
    assert {name.rpartition(".")[2] for name in trained if "norm" not in name and "head" not in name} == {
        "lora_a",
        "lora_b",
    }
    assert {"head.weight", "head.bias", "norm.weight", "blocks.0.norm1.bias"} <= trained
    assert len(list(layers_of(backbone))) == 2 * 6
    assert backbone.state_dict().keys() > small_vit().state_dict().keys()


def test_layers_whose_matrix_is_computed_have_no_adapter() -> None:
    layers = nn.utils.spectral_norm(nn.Linear(768, 8)), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    backbone = adapted(nn.Sequential(nn.Flatten(), *layers))
    assert [name for name, layer in backbone.named_modules() if isinstance(layer, AdaptedLinear)] == ["3"]


def test_targets_are_named_by_the_last_parts_of_their_names() -> None:
    backbone = adapted(args=AdapterArgs(rank=2, targets=("query", "blocks.1.up")))
    names = [name for name, layer in backbone.named_modules() if isinstance(layer, AdaptedLinear)]
    assert names == ["blocks.0.query", "blocks.1.query", "blocks.1.up"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (AdapterArgs(rank=2, targets=("querry",)), "no linear layer `querry`; did you mean `query`"),
        (AdapterArgs(rank=2, targets=("norm1",)), "no linear layer `norm1`"),
        (AdapterArgs(rank=17), "rank: 17 is more than `blocks.0.query` of the network has"),
    ],
)
def test_what_cannot_have_an_adapter_is_said_in_one_line(args: AdapterArgs, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        adapted(args=args)
    assert "\n" not in str(error.value)


def test_a_network_without_linear_layers_cannot_have_any() -> None:
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    with pytest.raises(ConfigError, match="no linear layer but the last"):
        adapted(convolutions)


class Attention(nn.Module):
    """torch's own attention, which uses the weight of its last layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.up = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(F.relu(self.up(mixed)).mean(1))


def test_a_layer_that_is_not_called_gets_none() -> None:
    backbone = adapted(Attention(), AdapterArgs(rank=2))
    assert [name for name, layer in backbone.named_modules() if isinstance(layer, AdaptedLinear)] == ["up"]


class Fused(nn.Module):
    """torch's own encoder, which goes past its layers in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def test_a_fused_operation_that_goes_past_adapters_is_noticed() -> None:
    with pytest.raises(ConfigError, match="`encoder` of the network puts out something else without gradients"):
        adapted(Fused(), AdapterArgs(rank=2))


@pytest.mark.parametrize("rank", [4, 16])
def test_a_merged_network_computes_the_same(rank: int) -> None:
    backbone = adapted(args=AdapterArgs(rank=rank, dropout=0.5))
    whole = merged(backbone)
    assert whole.state_dict().keys() == small_vit().state_dict().keys()
    torch.testing.assert_close(whole(PICTURES), backbone(PICTURES), rtol=1e-5, atol=1e-6)
    assert merged(whole) is whole


def test_dropout_is_of_the_adapters_inputs_in_training_alone() -> None:
    backbone = adapted(args=AdapterArgs(rank=4, dropout=0.5))
    assert torch.equal(backbone(PICTURES), backbone(PICTURES))
    backbone.train()
    assert not torch.equal(backbone(PICTURES), backbone(PICTURES))


def test_a_copy_around_the_same_tensors_has_adapters_too() -> None:
    backbone = adapted()
    copy = with_same_tensors(backbone)
    assert torch.equal(copy(PICTURES), backbone(PICTURES))
    assert next(layers_of(copy)).lora_a is next(layers_of(backbone)).lora_a


def test_a_network_that_a_program_passes_gets_adapters_by_the_seed() -> None:
    args = check(ModelArgs, {"adapter": {"rank": 4}}, where="a file")
    base = small_vit()
    first, second, other = (take_over(base, args, 10, seed, IMAGE) for seed in (1, 1, 2))
    weights = [next(layers_of(each)).lora_a for each in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert all(parameter.requires_grad for parameter in base.parameters())


class _CalledTwice(nn.Module):
    """One linear layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3 * 16 * 16, 8)
        self.first = nn.Linear(8, 8)
        self.second = self.first
        self.head = nn.Linear(8, 4)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.stem(pictures.flatten(1)).relu()
        output: Tensor = self.head(self.second(self.first(hidden).relu()))
        return output


def test_a_layer_with_two_names_has_one_adapter_at_both() -> None:
    network = _CalledTwice()
    adapted(network)
    assert isinstance(network.first, AdaptedLinear)
    assert network.second is network.first


def test_a_layer_with_two_names_is_merged_at_both() -> None:
    backbone = adapted(_CalledTwice())
    assert torch.allclose(merged(backbone)(PICTURES), backbone(PICTURES), atol=1e-5)
