"""Attention of fewer heads is torch's own where it has all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.pruning.attention import SlimAttention

PADDING = torch.zeros(2, 5, dtype=torch.bool).index_fill_(1, torch.tensor([4]), True)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


def pair(**settings: bool) -> tuple[nn.MultiheadAttention, nn.MultiheadAttention]:
    attention = nn.MultiheadAttention(12, 3, **settings).eval()
    slim = copy.deepcopy(attention)
    SlimAttention.take_over(slim)
    return attention, slim


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("mask", [None, CAUSAL, torch.randn(6, 5, 5)])
def test_all_heads_give_what_torch_gives(
    batch_first: bool, bias: bool, need_weights: bool, padding: Tensor | None, mask: Tensor | None
) -> None:
    attention, slim = pair(batch_first=batch_first, bias=bias)
    x = torch.randn(2, 5, 12) if batch_first else torch.randn(5, 2, 12)
    results = [
        each(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights) for each in (attention, slim)
    ]
    torch.testing.assert_close(results[1][0], results[0][0])
    assert (results[1][1] is None) == (results[0][1] is None) == (not need_weights)
    if need_weights:
        torch.testing.assert_close(results[1][1], results[0][1])


def test_without_a_batch_and_with_the_weights_of_every_head() -> None:
    attention, slim = pair()
    x = torch.randn(5, 12)
    for each in zip(
        attention(x, x, x, average_attn_weights=False), slim(x, x, x, average_attn_weights=False), strict=True
    ):
        torch.testing.assert_close(*each)


def test_dropout_acts_in_training() -> None:
    torch.manual_seed(1)
    attention = nn.MultiheadAttention(12, 3, dropout=0.5, batch_first=True)
    SlimAttention.take_over(attention)
    x = torch.randn(2, 5, 12)
    for need_weights in (True, False):
        assert not torch.equal(*(attention.train()(x, x, x, need_weights=need_weights)[0] for _ in range(2)))
        assert torch.equal(*(attention.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2)))
