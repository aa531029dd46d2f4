"""HeteroFL's scaler on users' networks: where all channels are alike, slim networks answer as the whole one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.parts.scaler import Scalers, with_scaler
from fedml_dapper.models import Backbone, adopt
from fedml_dapper.pruning import ChannelLayout, PruningPlan, plan_window, slim_model, trace_layout

INNER = 8


class Flat(nn.Module):
    """Two of the same layer, of the given ``kind``, and a linear head."""

    def __init__(self, kind: Callable[[int, int], nn.Module], dims: int) -> None:
        super().__init__()
        self.first = kind(3, INNER)
        self.second = kind(INNER, INNER)
        self.dims = dims
        self.last = nn.Linear(INNER, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        return self.last(x.flatten(2).mean(2) if self.dims else x)  # type: ignore[no-any-return]


class Columns(nn.Module):
    """A linear layer of one's own, whose outputs are the matrix's columns."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(inputs, outputs))
        self.shift = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.shift, x, self.kernel)


class Halved(nn.Conv2d):
    """A convolution of one's own, which does more than to convolve, and returns more than one tensor."""

    def forward(self, input: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
        return 0.5 * super().forward(input).clamp(min=0), 1


class Rectified(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Halved(3, INNER, 3)
        self.second = Halved(INNER, INNER, 3)
        self.last = nn.Linear(INNER, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)[0])[0].mean((2, 3)))  # type: ignore[no-any-return]


class Depthwise(nn.Module):
    """A depthwise convolution, which adds nothing up over channels, between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, INNER, 3)
        self.each = nn.Conv1d(INNER, INNER, 3, groups=INNER, bias=False)
        self.second = nn.Conv1d(INNER, INNER, 3)
        self.last = nn.Linear(INNER, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.each(self.first(x).relu())).relu().mean(2))  # type: ignore[no-any-return]


class Products(nn.Module):
    """Products with parameters, and with weights of layers that are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ParameterList([nn.Parameter(torch.zeros(3, INNER))])
        self.second = nn.Linear(INNER, INNER)
        self.third = nn.Conv1d(INNER, INNER, 1)
        self.last = nn.Linear(INNER, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear((x @ self.first[0]).relu(), self.second.weight, self.second.bias).relu()
        x = F.conv1d(x[:, :, None], self.third.weight, self.third.bias)[:, :, 0]
        return self.last(x)  # type: ignore[no-any-return]


class Words(nn.Module):
    """Embeddings, attention of torch and a residual stream, without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(20, INNER)
        self.place = nn.Embedding(5, INNER)
        self.attention = nn.MultiheadAttention(INNER, 4, batch_first=True)
        self.up = nn.Linear(INNER, 12)
        self.down = nn.Linear(12, INNER)
        self.last = nn.Linear(INNER, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last((x + self.down(self.up(x).relu())).mean(1))  # type: ignore[no-any-return]


def flat(kind: Callable[..., nn.Module], dims: int, *arguments: int) -> Callable[[], nn.Module]:
    return lambda: Flat(lambda inputs, outputs: kind(inputs, outputs, *arguments), dims)


def pixels(*shape: int) -> Tensor:
    return torch.ones(2, 3, *shape)


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (flat(nn.Linear, 0), pixels()),
    "convolution of images": (flat(nn.Conv2d, 2, 3), pixels(7, 7)),
    "convolution of series": (flat(nn.Conv1d, 1, 3), pixels(7)),
    "convolution of volumes": (flat(nn.Conv3d, 3, 3), pixels(7, 7, 7)),
    "transposed of images": (flat(nn.ConvTranspose2d, 2, 2, 2), pixels(3, 3)),
    "transposed of series": (flat(nn.ConvTranspose1d, 1, 2, 2), pixels(3)),
    "transposed of volumes": (flat(nn.ConvTranspose3d, 3, 2, 2), pixels(2, 2, 2)),
    "one's own linear layer": (flat(Columns, 0), pixels()),
    "one's own, derived": (flat(Rectified, 0), pixels()),
    "one's own convolution": (Halving, pixels(7, 7)),
    "depthwise": (Depthwise, pixels(9)),
    "products": (Products, pixels()),
    "words": (Words, torch.tensor([[1, 2, 3, 4, 5]] * 2)),
}


def alike(network: nn.Module, example: Inputs) -> tuple[Backbone, ChannelLayout, PruningPlan]:
    """The network with the same number in all of a tensor's entries, and a plan with half of its channels."""
    for number, parameter in enumerate(network.parameters()):
        nn.init.constant_(parameter, 0.05 + 0.01 * number)
    backbone = adopt(network, example[:1])
    layout = trace_layout(backbone, example[:1], "grouped")
    return backbone, layout, plan_window(layout, {name: g.channels // 2 for name, g in layout.groups.items()}, start=0)


def output(model: Backbone, batch: Batch) -> Tensor:
    return model(batch.inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_slim_network_of_like_channels_answers_in_training_as_the_whole_one(name: str) -> None:
    make, example = NETWORKS[name]
    backbone, layout, plan = alike(make(), example)
    producers = {producer for group in layout.groups.values() for producer in group.producers}
    assert len(producers) > 1
    scalers = Scalers.of(backbone, example, layout)
    slim = slim_model(backbone, layout, plan).train()
    batch = Batch(example, torch.zeros(2, dtype=torch.int64))
    whole = output(backbone.train(), batch)
    before = output(slim, batch)
    scaled = with_scaler(output, scalers.shares(layout, plan))(slim, batch)
    assert not torch.allclose(before, whole, rtol=0.05)
    torch.testing.assert_close(scaled, whole)
    assert torch.equal(output(slim, batch), before)  # nothing is left behind
    scaled.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in slim.parameters())
