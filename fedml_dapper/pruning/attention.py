"""Multi-head attention with fewer heads than its embedding width would hold."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SlimAttention(nn.MultiheadAttention):
    """A :class:`torch.nn.MultiheadAttention` of which heads were pruned.

    The heads no longer fill the embedding width: for h heads of d channels each, ``in_proj_weight`` has shape (3 h d,
    E) and ``out_proj.weight`` (E', h d). Names of tensors, arguments and results are those of torch's class.
    """

    @classmethod
    def take_over(cls, module: nn.MultiheadAttention) -> None:
        """Turn ``module``, whose tensors are already cut to the kept rows and columns, into this class in place."""
        module.num_heads = module.in_proj_weight.shape[0] // (3 * module.head_dim)
        module.embed_dim = module.kdim = module.vdim = module.in_proj_weight.shape[1]
        module._qkv_same_embed_dim = False  # keeps transformer layers off torch's fused kernel, which wants all heads
        module.__class__ = cls

    def extra_repr(self) -> str:
        """The sizes that ``repr`` shows, beside the projections."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as :meth:`torch.nn.MultiheadAttention.forward` does, with the same arguments and results."""
        batched = query.dim() == 3
        swapped = query.dim() == 3 and not self.batch_first
        inputs = [x.transpose(0, 1) if swapped else x if batched else x[None] for x in (query, key, value)]
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        queries, keys, values = [
            F.linear(x, weight, bias).view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for x, weight, bias in zip(inputs, self.in_proj_weight.chunk(3), biases, strict=True)
        ]
        mask = self._mask(queries, key_padding_mask, attn_mask)  # `is_causal` only hints at what a mask holds
        weights = None
        if need_weights:
            scores = queries @ keys.transpose(2, 3) / sqrt(self.head_dim)
            weights = F.softmax(scores if mask is None else scores + mask, dim=3)
            mixed = F.dropout(weights, self.dropout, self.training) @ values
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
        result: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return result[0], weights if weights is None else weights[0]
        return result.transpose(0, 1) if swapped else result, weights

    def _mask(self, like: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """Additive form of both masks, which broadcasts to (batch, heads, queries, keys); None without any."""
        parts = []
        if attention is not None:
            shape = (-1, self.num_heads, *attention.shape[1:]) if attention.dim() == 3 else attention.shape
            parts.append(_additive(attention, like).view(shape))
        if padding is not None:
            parts.append(_additive(padding, like).view(-1, 1, 1, padding.shape[-1]))
        return sum(parts[1:], parts[0]) if parts else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Turn a boolean mask, True for what is not attended to, into one of 0 and -inf; float masks keep their values."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)
