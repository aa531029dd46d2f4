"""A small vision transformer, as you might bring it: nothing in it knows of this package."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and an MLP on a residual stream; heads are split by a view."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.heads = heads

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        query, key, value = (self.split(layer(y)) for layer in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Square patches, a few blocks, and a linear layer on the mean of the tokens."""

    def __init__(
        self, num_classes: int, width: int = 64, depth: int = 4, heads: int = 4, side: int = 16, patch: int = 4
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))
