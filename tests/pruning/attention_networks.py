"""Networks of attention in the views of the libraries that people take them from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, WIDTH, HEADS = 10, 32, 4
SIZE = WIDTH // HEADS


class Block(nn.Module):
    """Attention of the user's and an MLP, on a residual stream."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.before, self.attention, self.after = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.after(x))))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Patches of a picture, two blocks, and a head on their mean."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.blocks = nn.ModuleList(Block(attention()) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Separate(nn.Module):
    """Queries, keys and values of layers of their own, as Hugging Face's BERT and ViT have them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], HEADS, SIZE).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / SIZE**0.5
        mixed = torch.matmul(self.dropout(scores.softmax(-1)), value).permute(0, 2, 1, 3).contiguous()
        return self.dense(mixed.view(*mixed.shape[:-2], WIDTH))  # type: ignore[no-any-return]


class Fused(Separate):
    """The same by torch's fused attention, of values of another width and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.dense = nn.Linear(WIDTH, 24, bias=False), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        query, key = (layer(x).view(batch, -1, HEADS, SIZE).transpose(1, 2) for layer in (self.query, self.key))
        value = self.value(x).view(batch, -1, HEADS, 24 // HEADS).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.dense(mixed.transpose(1, 2).reshape(batch, -1, 24))  # type: ignore[no-any-return]


class Unbound(nn.Module):
    """One layer for all three, told apart as timm does, with norms of what each head holds."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm, self.norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(self.norm(mixed.transpose(1, 2).reshape(batch, length, width)))  # type: ignore[no-any-return]


class Windows(nn.Module):
    """Attention within windows, with a bias of each head's own for every place and a mask, as Swin has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(0.1 * torch.randn(9, HEADS))
        self.register_buffer("places", torch.arange(16).view(4, 4) % 9)
        self.register_buffer("mask", -5.0 * torch.eye(4).expand(4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        x = torch.roll(x.view(batch, 4, 4, width), (-1, -1), (1, 2)).view(batch, 2, 2, 2, 2, width)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, width)
        windows, places, _ = x.shape
        qkv = self.qkv(x).reshape(windows, places, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = q * SIZE**-0.5 @ k.transpose(-2, -1)
        bias = self.table[self.places.view(-1)].view(4, 4, HEADS).permute(2, 0, 1).contiguous()  # type: ignore[operator]
        scores = scores + bias.unsqueeze(0)
        scores = scores.view(windows // 4, 4, HEADS, 4, 4) + self.mask.unsqueeze(1).unsqueeze(0)  # type: ignore[operator]
        x = (scores.view(-1, HEADS, 4, 4).softmax(-1) @ v).transpose(1, 2).reshape(windows, places, width)
        x = self.proj(x).view(batch, 2, 2, 2, 2, width).permute(0, 1, 3, 2, 4, 5).reshape(batch, 4, 4, width)
        return torch.roll(x, (1, 1), (1, 2)).view(batch, length, width)


class Grouped(nn.Module):
    """Two heads of queries for each of keys and values, turned by their place, as Llama has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2])[:, None] / 10 ** torch.arange(SIZE)
        return x * angles.cos() + torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], dim=-1) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, SIZE)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        k, v = (
            each[:, :, None].expand(-1, -1, 2, -1, -1).reshape(len(x), HEADS, -1, SIZE) for each in (self.turned(k), v)
        )
        scores = (self.turned(q) @ k.transpose(2, 3)).softmax(-1)
        return self.o((scores @ v).transpose(1, 2).reshape(*x.shape[:-1], -1))  # type: ignore[no-any-return]


ATTENTION: Mapping[str, Callable[[], nn.Module]] = {
    "separate": lambda: Patches(Separate),
    "fused": lambda: Patches(Fused),
    "unbound": lambda: Patches(Unbound),
    "windows": lambda: Patches(Windows),
    "grouped_queries": lambda: Patches(Grouped),
}
