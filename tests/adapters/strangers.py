"""BERT, GPT-2 and ViT as strangers bring them, built like Hugging Face's, and data for them: nothing here knows of this
package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, INNER, DEPTH, TOKENS, LENGTH = 16, 4, 32, 2, 40, 6


class SelfAttention(nn.Module):
    """Queries, keys and values of layers of their own; ``mask`` is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size = HEADS, WIDTH // HEADS
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (self.transpose_for_scores(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        probabilities = self.dropout((scores if mask is None else scores + mask).softmax(-1))
        context = torch.matmul(probabilities, value).permute(0, 2, 1, 3).contiguous()
        return context.view(*context.shape[:-2], WIDTH)


class SelfOutput(nn.Module):
    """The last layer of a sub-block, with the residual stream's norm behind the sum, as BERT has it."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm, self.dropout = nn.Linear(inner, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor, stream: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + stream)  # type: ignore[no-any-return]


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.attention_output = SelfAttention(), SelfOutput(WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, INNER), SelfOutput(INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_output(self.attention(x, mask), x)
        return self.output(F.gelu(self.intermediate(x)), x)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Post-norm blocks on tokens, places and kinds of tokens, a pooler, and a classifier."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.position_embeddings, self.token_type_embeddings = nn.Embedding(LENGTH, WIDTH), nn.Embedding(2, WIDTH)
        self.LayerNorm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.layer = nn.ModuleList(BertLayer() for _ in range(DEPTH))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, num_classes)
        self.register_buffer("position_ids", torch.arange(LENGTH)[None], persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        places = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])  # type: ignore[index]
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids) + places
        x = self.dropout(self.LayerNorm(x))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))  # type: ignore[no-any-return]


class Conv1D(nn.Module):
    """A linear layer whose matrix is transposed."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


class CausalAttention(nn.Module):
    """Queries, keys and values of one layer, split and seen by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.split_size, self.head_dim = WIDTH, WIDTH // HEADS
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        causal = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))[None, None]
        self.register_buffer("bias", causal, persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.c_attn(x).split(self.split_size, dim=2)
        shape = (*query.shape[:-1], -1, self.head_dim)
        query, key, value = (each.view(shape).transpose(1, 2) for each in (query, key, value))
        key, value = (torch.cat([each.new_empty(0), each], dim=-2) for each in (key, value))  # behind an empty cache
        scores = torch.matmul(query, key.transpose(-1, -2)) / value.size(-1) ** 0.5
        length = query.size(-2)
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        scores = torch.where(self.bias[:, :, :length, :length], scores, lowest) + mask  # type: ignore[index]
        context = torch.matmul(scores.softmax(-1), value).transpose(1, 2)
        return self.c_proj(context.reshape(*context.shape[:-2], -1).contiguous())  # type: ignore[no-any-return]


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), CausalAttention(), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = Conv1D(INNER, WIDTH), Conv1D(WIDTH, INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """Pre-norm blocks that look back alone, and a last layer whose weights are those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.ModuleList(GPT2Block() for _ in range(DEPTH)), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))  # type: ignore[no-any-return]


class ViTLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.attention_output = SelfAttention(), nn.Linear(WIDTH, WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention_output(self.attention(self.layernorm_before(x)))
        return x + self.output(F.gelu(self.intermediate(self.layernorm_after(x))))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Pre-norm blocks on patches and a token for the class, which the classifier reads."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.projection = nn.Conv2d(3, WIDTH, 8, 8)
        self.position_embeddings = nn.Parameter(0.1 * torch.randn(1, 5, WIDTH))
        self.layer = nn.ModuleList(ViTLayer() for _ in range(DEPTH))
        self.layernorm, self.classifier = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.projection(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.position_embeddings
        for layer in self.layer:
            x = layer(x)
        return self.classifier(self.layernorm(x)[:, 0])  # type: ignore[no-any-return]


Rows = Sequence[tuple[Any, Any]]


def _tokens(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Inputs as a tokenizer makes them: of unequal lengths, padded behind."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    ids = torch.randint(1, TOKENS, (count, LENGTH), generator=generator) * mask
    return [{"input_ids": row, "attention_mask": each} for row, each in zip(ids, mask, strict=True)]


def sentences() -> Mapping[str, tuple[Rows, Rows]]:
    """Sentences of two classes: whether the first token is in the upper half."""

    def rows(count: int, seed: int) -> Rows:
        inputs = [{**row, "token_type_ids": torch.zeros_like(row["input_ids"])} for row in _tokens(count, seed)]
        return [(row, int(row["input_ids"][0] > TOKENS // 2)) for row in inputs]

    return {"one": (rows(24, 1), rows(8, 2)), "two": (rows(24, 3), rows(8, 4))}


def texts() -> Mapping[str, tuple[Rows, Rows]]:
    """Texts, each with the tokens that follow."""

    def rows(count: int, seed: int) -> Rows:
        following = [row["input_ids"].roll(-1) for row in _tokens(count, seed)]
        return [
            (row, torch.where(row["attention_mask"] > 0, targets, -100))
            for row, targets in zip(_tokens(count, seed), following, strict=True)
        ]

    return {"one": (rows(24, 1), rows(8, 2)), "two": (rows(24, 3), rows(8, 4))}


def pictures() -> Mapping[str, tuple[Rows, Rows]]:
    """Pictures of two classes: which half is brighter."""

    def rows(count: int, seed: int) -> Rows:
        found = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        return [(each, int(each[:, :8].mean() > each[:, 8:].mean())) for each in found]

    return {"one": (rows(24, 1), rows(8, 2)), "two": (rows(24, 3), rows(8, 4))}
