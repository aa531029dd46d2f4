"""A small causal transformer over tokens: pre-norm, of torch's own operations (Vaswani et al., 2017; Radford et al.,
2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.models.backbone import Backbone

WIDTH = 64
"""Channels of the residual stream."""
_DEPTH = 3
_CHANNELS_OF_HEAD = 16
_SPREAD = 0.02
"""Standard deviation of positions before training."""


class TransformerSmall(Backbone):
    """Three blocks of ``width`` channels, with an attention head for each 16 and an MLP of four times the width.

    Inputs are tokens int64 (B, T), of T no more than those it is built for. Outputs are logits of shape (B, T, V), for
    the token that follows each position, which depend on no later one. So there is no single representation of a text,
    and no predictor. Padding behind a text needs no mask.

    Raises:
        ConfigError: ``width`` is no multiple of 16, or the data do not say how many tokens there are.
    """

    def __init__(self, width: int, num_classes: int, length: int) -> None:
        super().__init__()
        if width % _CHANNELS_OF_HEAD:
            raise ConfigError(
                f"model_args.width: transformer_small has a head for each {_CHANNELS_OF_HEAD} channels; {width} is no"
                " multiple of that"
            )
        if num_classes == 0:
            raise ConfigError(
                "model_args.model: transformer_small says which token follows, and the data do not say how many there"
                " are; give their number in data_args.classes"
            )
        self.predictor = None  # type: ignore[assignment]
        self.tokens = nn.Embedding(num_classes, width)
        self.positions = nn.Parameter(_SPREAD * torch.randn(1, length, width))
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(_DEPTH)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the residual stream behind its last norm, shape (B, T, width)."""
        length = tokens.shape[1]
        if length > self.positions.shape[1]:
            raise DataError(
                f"transformer_small is built for texts of {self.positions.shape[1]} tokens, as the first of the data"
                f" is, and one has {length}; cut texts to one length, or put the longest first"
            )
        features: Tensor = self.norm(self.blocks(self.tokens(tokens) + self.positions[:, :length]))
        return features

    def predict(self, representations: Tensor) -> Tensor:
        logits: Tensor = self.head(representations)
        return logits


class _Block(nn.Module):
    """Causal attention and an MLP, each behind a norm and added to the residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        found = self.norm1(stream)
        query, key, value = (_split(layer(found)) for layer in (self.query, self.key, self.value))
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.out(heads.transpose(1, 2).flatten(2))
        added: Tensor = self.down(F.gelu(self.up(self.norm2(stream))))
        return stream + added


def _split(channels: Tensor) -> Tensor:
    """Split channels (B, T, W) into heads, (B, H, T, 16); a slim block has fewer heads."""
    batch, length, _ = channels.shape
    return channels.view(batch, length, -1, _CHANNELS_OF_HEAD).transpose(1, 2)


def transformer_small(width: int, num_classes: int, length: int) -> TransformerSmall:
    """Build the transformer: 170,688 parameters at width 64, 128 tokens, and texts of 64 tokens."""
    return TransformerSmall(width, num_classes, length)
