"""Heads of attention behind views of the user's: linear layers lose rows and columns, activations keep their width."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.models import adopt
from fedml_dapper.pruning import ChannelLayout, PruningPlan, slim_model, trace_layout
from fedml_dapper.pruning.filled import FilledLinear
from fedml_dapper.pruning.plan import plan_window
from fedml_dapper.pruning.slim import slim_layout

from .attention_networks import ATTENTION, HEADS, SIZE, WIDTH, Patches, Separate, Unbound
from .networks import IMAGE, build

ROWS = {
    "separate": {"query": HEADS * SIZE, "key": HEADS * SIZE, "value": HEADS * SIZE, "dense": WIDTH},
    "fused": {"query": HEADS * SIZE, "key": HEADS * SIZE, "value": 24, "dense": WIDTH},
    "unbound": {"qkv": 3 * HEADS * SIZE, "proj": WIDTH},
    "windows": {"qkv": 3 * HEADS * SIZE, "proj": WIDTH},
    "grouped_queries": {"q": HEADS * SIZE, "k": HEADS * SIZE // 2, "v": HEADS * SIZE // 2, "o": WIDTH},
}
"""Rows of each linear layer of attention; the last one's stay, and its columns are as many as the values' rows."""


def traced(name: str) -> tuple[nn.Module, ChannelLayout, str]:
    model = build(name).eval()
    layout = trace_layout(model, IMAGE, "internal")
    return model, layout, f"blocks.0.attention.{next(iter(ROWS[name]))}"


@pytest.mark.parametrize("name", ATTENTION)
def test_half_the_heads_are_half_the_weights(name: str) -> None:
    model, layout, group = traced(name)
    kept = layout.groups[group].channels // 2
    slim = slim_model(model, layout, PruningPlan({group: torch.arange(kept) * 2}))
    *inner, last = ROWS[name]
    for layer in inner:
        weight = slim.get_parameter(f"blocks.0.attention.{layer}.weight")
        assert weight.shape == (ROWS[name][layer] // 2, WIDTH)
    values = model.get_parameter(f"blocks.0.attention.{last}.weight").shape[1]
    assert slim.get_parameter(f"blocks.0.attention.{last}.weight").shape == (WIDTH, values // 2)
    assert slim.get_submodule("blocks.1").state_dict().keys() == model.get_submodule("blocks.1").state_dict().keys()
    assert slim.state_dict().keys() == model.state_dict().keys()
    assert slim(IMAGE).shape == (1, 10)


@pytest.mark.parametrize("name", ATTENTION)
def test_what_is_cut_on_is_what_was_cut_at_once(name: str) -> None:
    model, layout, group = traced(name)
    heads = layout.groups[group].channels
    first = PruningPlan({group: torch.arange(heads) if heads == 2 else torch.tensor([0, 1, 3])})
    then, at_once = PruningPlan({group: torch.tensor([1])}), PruningPlan({group: torch.tensor([1])})
    once = slim_model(model, layout, first)
    twice = slim_model(once, slim_layout(layout, first), then)
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(twice(x), slim_model(model, layout, at_once)(x))
    layer = twice.get_submodule(group)
    assert isinstance(layer, FilledLinear)
    assert (layer.in_features, layer.out_features) == (WIDTH, ROWS[name][group.rpartition(".")[2]])


def test_slim_heads_learn_and_travel() -> None:
    model, layout, group = traced("unbound")
    plan = plan_window(layout, {group: 3, "blocks.1.up": 20})
    slim = slim_model(model, layout, plan).train()
    slim(torch.randn(2, 3, 32, 32)).square().sum().backward()
    weight = slim.get_parameter(f"{group}.weight")
    assert weight.grad is not None
    assert bool(weight.grad.abs().sum(1).gt(0).any())
    other = slim_model(model, layout, plan)
    other.load_state_dict(slim.state_dict())
    assert torch.equal(other.eval()(IMAGE), slim.eval()(IMAGE))
    assert "_written" not in str(list(slim.state_dict()))


class Beside(Separate):
    """Values are looked at by more than attention, and the last layer reads more than its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        mixed = ((query @ key.transpose(-1, -2)).softmax(-1) @ value).permute(0, 2, 1, 3).flatten(2)
        return self.dense(torch.cat([mixed, x], dim=-1))  # type: ignore[no-any-return]


class Mixed(Separate):
    """Heads that talk to each other, by a linear layer over them."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = nn.Linear(HEADS, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = self.talk((query @ key.transpose(-1, -2)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.dense((scores.softmax(-1) @ value).permute(0, 2, 1, 3).flatten(2))  # type: ignore[no-any-return]


class ByHand(Unbound):
    """The layer's weight is used, but the layer is not called."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = nn.functional.linear(x, self.qkv.weight, self.qkv.bias)
        q, k, v = qkv.reshape(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Unattended(nn.Module):
    """A view over several axes that has nothing to do with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.inner(x).unflatten(-1, (HEADS, SIZE)).softmax(-2)
        return self.outer(pairs.flatten(-2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("attention", [Beside, Mixed, ByHand, Unattended])
def test_what_is_no_plain_attention_is_cut_right_or_stays_whole_with_a_note(attention: type[nn.Module]) -> None:
    torch.manual_seed(2)
    network = adopt(Patches(attention), IMAGE)
    layout = trace_layout(network, IMAGE, "internal")  # which tries what it finds
    heads = [name for name in layout.groups if ".attention." in name]
    if attention in (ByHand, Unattended):
        assert not heads
        assert any(".attention." in note.partition(" not cut")[0] for note in layout.notes)
    else:
        assert len(heads) == (4 if attention is Mixed else 2)  # where values keep heads of their own


def test_the_note_about_a_view_names_it() -> None:
    layout = trace_layout(Patches(Unattended), IMAGE, "internal")
    [note] = layout.notes
    assert "`blocks.1.attention.inner` not cut: a view spreads the channels over several axes in" in note


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_networks_of_timm(scope: str) -> None:
    timm = pytest.importorskip("timm")
    for name in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        network = timm.create_model(name, num_classes=10)
        layout = trace_layout(network, torch.zeros(1, 3, 224, 224), scope)  # type: ignore[arg-type]
        assert any(name.endswith(".attn.qkv") for name in layout.groups)


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_networks_of_hugging_face(scope: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=10)
            self.network = transformers.ViTForImageClassification(config)

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x).logits  # type: ignore[no-any-return]

    layout = trace_layout(Classifier(), IMAGE, scope)  # type: ignore[arg-type]
    assert any(name.endswith(("attention.query", "attention.q_proj")) for name in layout.groups)  # by version
