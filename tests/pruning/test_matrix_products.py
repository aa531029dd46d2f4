"""Linear maps that are no ``nn.Linear``: products with a parameter, and layers of users' own around one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.pruning import ChannelLayout, PruningPlan, slim_model, trace_layout
from fedml_dapper.pruning.filled import SlimLinearMap
from fedml_dapper.pruning.footprint import count_macs
from fedml_dapper.pruning.layout import LinearMap
from fedml_dapper.pruning.slim import slim_layout
from fedml_dapper.pruning.tracing.linear_maps import linear_maps

from .attention_networks import HEADS, SIZE, WIDTH

ROW = torch.zeros(1, 20)


class Product(nn.Module):
    """Two products with parameters, in the given ``way``, and a linear layer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.one = nn.Parameter(0.1 * torch.randn(20, 64)), nn.Parameter(torch.zeros(64))
        self.second, self.two = nn.Parameter(0.1 * torch.randn(64, 24)), nn.Parameter(torch.zeros(24))
        self.last = nn.Linear(24, 4)

    def mapped(self, x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:  # noqa: PLR0911  # one way a line
        if self.way == "addmm":
            return torch.addmm(bias, x, matrix)
        if self.way == "transposed":
            return F.linear(x, matrix.T, bias)
        if self.way == "from the left":
            return (matrix.t() @ x.t()).t() + bias
        if self.way == "einsum":
            return torch.einsum("btc,cf->btf", x[:, None], matrix)[:, 0] + bias
        if self.way == "baddbmm":
            return torch.baddbmm(bias, x[:, None], matrix.expand(len(x), -1, -1))[:, 0]
        if self.way == "by a convolution":
            return F.conv1d(x[:, :, None], matrix.t().unsqueeze(2), bias)[:, :, 0]
        if self.way == "a part":
            return x[:, : len(matrix) - 1] @ matrix[:-1] + bias
        if self.way == "computed":
            return x @ (0.5 * matrix) + bias
        return x @ matrix + bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.mapped(x, self.first, self.one).relu()
        return self.last(self.mapped(x, self.second, self.two).relu())  # type: ignore[no-any-return]


WAYS = ("@", "addmm", "transposed", "from the left", "einsum", "baddbmm", "by a convolution")


@pytest.mark.parametrize("way", WAYS)
def test_the_inner_width_of_products_with_parameters_is_cut(way: str) -> None:
    network = Product(way).eval()
    layout = trace_layout(network, ROW, "internal")
    assert {name: group.channels for name, group in layout.groups.items()} == {"first": 64}
    assert layout.notes == ()
    slim = slim_model(network, layout, PruningPlan({"first": torch.arange(16) * 3}))
    shapes = {name: tuple(tensor.shape) for name, tensor in slim.named_parameters()}
    assert shapes["first"] == (20, 16)
    assert shapes["one"] == (16,)
    assert shapes["second"] == (16, 24)
    assert slim(torch.randn(3, 20)).shape == (3, 4)
    assert count_macs(layout, {}) == 20 * 64 + 64 * 24 + 24 * 4
    assert count_macs(layout, {"first": 16}) == 20 * 16 + 16 * 24 + 24 * 4
    assert "second" in trace_layout(network, ROW, "grouped").groups


@pytest.mark.parametrize("way", ["a part", "computed"])
def test_what_cannot_be_followed_stays_whole(way: str) -> None:
    layout = trace_layout(Product(way), ROW, "internal")
    assert layout.groups == {}
    assert count_macs(layout, {}) == (19 * 64 + 63 * 24 if way == "a part" else 20 * 64 + 64 * 24) + 24 * 4


class Scores(nn.Module):
    """Two scores, each a product with a vector, in the given ``way``."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.enter = nn.Linear(5 if way == "of several positions" else 20, 12)
        self.vectors = nn.ParameterList()
        for _ in range(2):
            self.vectors.append(nn.Parameter(torch.randn(12, 1) if way == "of a column" else torch.randn(12)))
        self.offset = nn.Parameter(torch.zeros(1))

    def score(self, x: Tensor, vector: Tensor) -> Tensor:
        if self.way == "addmv":
            return torch.addmv(self.offset, x, vector)
        if self.way == "of a column":
            return x @ vector.squeeze(1)
        if self.way == "of several positions":
            return (x @ vector).mean(1)
        return x @ vector

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.view(len(x), 4, 5) if self.way == "of several positions" else x).relu()
        return torch.stack([self.score(x, vector) for vector in self.vectors], 1)


@pytest.mark.parametrize("way", ["@", "addmv", "of a column", "of several positions"])
def test_products_with_vectors_lose_channels(way: str) -> None:
    network = Scores(way)
    layout = trace_layout(network, ROW, "internal")
    assert {name: group.channels for name, group in layout.groups.items()} == {"enter": 12}
    assert layout.notes == ()
    slim = slim_model(network, layout, PruningPlan({"enter": torch.arange(6) * 2}))
    assert {tuple(vector.shape) for vector in slim.vectors} == {(6, 1) if way == "of a column" else (6,)}
    assert slim(torch.randn(3, 20)).shape == (3, 2)
    positions = 4 if way == "of several positions" else 1
    inputs = 5 if way == "of several positions" else 20
    assert count_macs(layout, {}) == positions * 12 * (inputs + 2)
    assert count_macs(layout, {"enter": 6}) == positions * 6 * (inputs + 2)


class Columns(nn.Module):
    """A linear layer whose matrix has the outputs as columns, and whose size stands in its code, as GPT-2's do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight, self.bias = nn.Parameter(0.1 * torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.outputs)


class Rows(nn.Module):
    """The same with outputs as rows, without bias, under another name."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs, self.kernel = outputs, nn.Parameter(0.1 * torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.kernel.mT).view(*x.shape[:-1], self.outputs)


class Decoder(nn.Module):
    """A block of attention and MLP of one kind of layer, as GPT-2 has it."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.enter, self.norm, self.last = nn.Linear(10, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        self.attend, self.project = layer(WIDTH, 3 * WIDTH), layer(WIDTH, WIDTH)
        self.up, self.down = layer(WIDTH, 48), layer(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.view(-1, 2, 10))
        parts = self.attend(self.norm(x)).split(WIDTH, dim=2)
        q, k, v = (each.view(*each.shape[:-1], -1, SIZE).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(len(x), 2, WIDTH))
        return self.last((x + self.down(F.gelu(self.up(x)))).mean(1))  # type: ignore[no-any-return]


LAYERS: Mapping[str, Callable[[int, int], nn.Module]] = {"columns": Columns, "rows": Rows}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_ones_own_lose_inner_widths_and_heads(kind: str) -> None:
    network = Decoder(LAYERS[kind]).eval()
    layout = trace_layout(network, ROW, "internal")
    assert {name.partition(".")[0]: each.channels for name, each in layout.groups.items()} == {
        "attend": HEADS,
        "up": 48,
    }
    assert layout.notes == ()
    heads, inner = layout.groups
    first = PruningPlan({heads: torch.tensor([0, 1, 3]), inner: torch.arange(24) * 2})
    then = PruningPlan({heads: torch.tensor([1, 2]), inner: torch.arange(20)})
    at_once = PruningPlan({heads: torch.tensor([1, 3]), inner: torch.arange(20) * 2})
    twice = slim_model(slim_model(network, layout, first), slim_layout(layout, first), then)
    once = slim_model(network, layout, at_once)
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    assert torch.equal(twice(x), once(x))
    assert once.state_dict().keys() == network.state_dict().keys()
    assert sizes(once, "up") == (WIDTH, 20)
    assert sizes(once, "down") == (20, WIDTH)
    assert sizes(once, "attend") == (WIDTH, 3 * WIDTH)  # of activations; the matrix has two heads
    assert sum(each.numel() for each in once.attend.parameters()) * 2 == sum(
        each.numel() for each in network.attend.parameters()
    )


def sizes(network: nn.Module, name: str) -> tuple[int, int]:
    layer = network.get_submodule(name)
    assert isinstance(layer, SlimLinearMap)
    return layer.in_features, layer.out_features


class Scaled(Columns):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Dropping(Columns):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


class Centred(Rows):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Derived(nn.Linear):
    """A linear layer under a name of its own."""


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (Columns, LinearMap("weight", "bias", 1)),
        (Rows, LinearMap("kernel", None, 0)),
        (nn.Linear, LinearMap("weight", "bias", 0)),
        (Derived, LinearMap("weight", "bias", 0)),
        (Scaled, None),
        (Dropping, None),
        (Centred, None),
        (lambda inputs, outputs: nn.utils.weight_norm(nn.Linear(inputs, outputs)), None),
        (nn.Embedding, None),
    ],
)
def test_what_is_a_linear_map(layer: Callable[[int, int], nn.Module], known: LinearMap | None) -> None:
    square = layer(6, 6)  # where either axis might be that of the outputs
    assert linear_maps(nn.ModuleDict({"it": square})).get("it") == known


class Fused(nn.Module):
    """One matrix for queries, keys and values, with biases of the first and last, as BEiT has it."""

    def __init__(self, is_called: bool) -> None:
        super().__init__()
        self.is_called = is_called
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.of_queries, self.of_values = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("of_keys", torch.zeros(WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat([self.of_queries, self.of_keys, self.of_values])  # type: ignore[list-item]
        qkv = self.qkv(x) + bias if self.is_called else F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(len(x), x.shape[1], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]


def of_fused(is_called: bool) -> ChannelLayout:
    torch.manual_seed(3)
    last = nn.Sequential(nn.Flatten(1), nn.Linear(4 * WIDTH, 4))
    network = nn.Sequential(nn.Unflatten(1, (4, 5)), nn.Linear(5, WIDTH), Fused(is_called), last)
    return trace_layout(network, ROW, "internal")


def test_heads_with_biases_of_their_own_are_cut_where_the_layer_is_called() -> None:
    layout = of_fused(is_called=True)
    assert layout.groups["2.qkv"].channels == HEADS


def test_heads_of_a_matrix_that_another_layer_uses_stay_whole_with_the_reason() -> None:
    layout = of_fused(is_called=False)
    assert "2.qkv" not in layout.groups
    assert "`2.qkv` not cut: `2` uses its weight without calling it" in layout.notes
