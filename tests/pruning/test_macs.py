"""Multiply-accumulates of networks of others, against torch's own counter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedml_dapper.pruning import trace_layout
from fedml_dapper.pruning.footprint import count_macs


class Cross(nn.Module):
    """Three learnt queries look at four tokens."""

    def __init__(self, bias_kv: bool = False, zero: bool = False) -> None:
        super().__init__()
        self.enter, self.queries = nn.Linear(12, 8), nn.Parameter(torch.randn(1, 3, 8))
        self.look = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=bias_kv, add_zero_attn=zero)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.enter(x.view(-1, 4, 12))
        queries = self.queries.expand(len(tokens), -1, -1)
        return self.head(self.look(queries, tokens, tokens, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


class Standardised(nn.Conv2d):
    """By BatchNorm of its filters, as timm's norm-free networks do it, with gains."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        filters = self.weight.reshape(1, len(self.weight), -1)
        weight = F.batch_norm(filters, None, None, weight=self.gain * 0.5, training=True).reshape(self.weight.shape)
        return F.conv2d(x, weight, self.bias)


class Factored(nn.Linear):
    """A matrix that is a product of two."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.left, self.right = nn.Parameter(torch.randn(outputs, 2)), nn.Parameter(torch.randn(2, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.left @ self.right, self.bias)


class Queries(nn.Module):
    """Learnt queries go through a layer of their own, for each example anew."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.own = nn.Parameter(torch.randn(1, 3, 48)), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x.flatten(1)) + self.own(self.queries.expand(len(x), -1, -1)).mean(1)  # type: ignore[no-any-return]


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "cross attention": Cross,
    "cross attention with biases for keys": lambda: Cross(bias_kv=True),
    "cross attention with a key of zeros": lambda: Cross(zero=True),
    "filters that are standardised": lambda: nn.Sequential(
        Standardised(3, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    ),
    "a factored matrix": lambda: nn.Sequential(nn.Flatten(), Factored(48, 6), nn.Linear(6, 4)),
    "learnt queries": Queries,
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_done_for_each_example_is_counted(kind: str) -> None:
    """As what torch counts grows with the batch: what is done to weights is done once."""
    network, inputs = NETWORKS[kind]().eval().requires_grad_(False), torch.randn(3, 3, 4, 4)
    one, three = flops(network, inputs[:1]), flops(network, inputs)
    assert count_macs(trace_layout(network, inputs[:1], None), {}) == (three - one) / 4


def flops(network: nn.Module, inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        network(inputs)
    return counter.get_total_flops()
