"""Networks that a user might bring: plain modules, from torchvision or written as people write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock

from .attention_networks import ATTENTION

CLASSES = 10
IMAGE = torch.zeros(1, 3, 32, 32)


def example(name: str) -> Tensor:
    """What the network takes, one at a time."""
    return EXAMPLES.get(name, IMAGE)


def build(name: str) -> nn.Module:
    """The network of that name, with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return NETWORKS[name]()


class Sequence(nn.Module):
    """Layers one after another, with a function of the user's between features and head."""

    def __init__(self, features: nn.Module, middle: Callable[[Tensor], Tensor], head: nn.Module) -> None:
        super().__init__()
        self.features, self.head, self.middle = features, head, middle

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.features(x)))  # type: ignore[no-any-return]


def convolutions(*channels: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=bias), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class CReLU(nn.Module):
    """Twice the channels: positive and negative parts."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, -x], dim=1).relu()


def pooled_pair(x: Tensor) -> Tensor:
    """Average and maximum side by side."""
    return torch.cat([x.mean((2, 3)), x.amax((2, 3))], dim=1)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).flatten(1)


class Shared(nn.Module):
    """Two branches with one weight, and an embedding-like matrix that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.left, self.right = nn.Conv2d(16, 24, 3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1)
        self.right.weight = self.left.weight
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((self.left(x).relu() + self.right(x.flip(3)).tanh()).mean((2, 3)))  # type: ignore[no-any-return]


def recursive() -> nn.Module:
    """One convolution under three names, as in ``nn.ModuleList([layer] * 3)``."""
    layer = nn.Conv2d(16, 16, 3, padding=1)
    again = [each for _ in range(3) for each in (layer, nn.ReLU())]
    stem = nn.Conv2d(3, 16, 3, 2, 1)
    return Sequence(nn.Sequential(stem, nn.ReLU(), *again), lambda x: x.mean((2, 3)), nn.Linear(16, CLASSES))


class HardCoded(nn.Module):
    """LeNet as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 5), nn.Conv2d(8, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 60), nn.Linear(60, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A norm-free residual network: learnt scales of branches instead of norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.inner = nn.ModuleList(nn.Conv2d(24, 20, 3, 1, 1) for _ in range(3))
        self.outer = nn.ModuleList(nn.Conv2d(20, 24, 3, 1, 1) for _ in range(3))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((24, 1, 1), 0.3)) for _ in range(3))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for inner, outer, scale in zip(self.inner, self.outer, self.scales, strict=True):
            x = x + scale * outer(F.gelu(inner(F.gelu(x))))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Parallel branches, side by side, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Conv2d(3, 8, 1), nn.Conv2d(3, 12, 3, 1, 1), nn.Conv2d(3, 6, 5, 1, 2)])
        self.norm = nn.BatchNorm2d(26)
        self.second = nn.ModuleList([nn.Conv2d(26, 10, 1), nn.Conv2d(26, 9, 3, 1, 1)])
        self.head = nn.Linear(10 + 9 + 26, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.cat([branch(x) for branch in self.first], 1)).relu()
        x = torch.cat([*(branch(x) for branch in self.second), x], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Words in, a class out: PyTorch's own encoder layers under a learnt position."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.places = nn.Parameter(0.1 * torch.randn(1, 12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.words(tokens) + self.places).mean(1))  # type: ignore[no-any-return]


class OwnAttention(nn.Module):
    """Attention as people write it, in a network of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.norm, self.qkv, self.mix = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (width // 4) ** 0.5).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """Halves of one layer gate each other; a layer's outputs are cut at a fixed place besides."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.both = convolutions(3, 12), nn.Conv2d(12, 32, 3, 2, 1)
        self.between, self.head = nn.Linear(16, 20), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.both(self.features(x)).chunk(2, dim=1)
        z = self.between((left * right.sigmoid()).mean((2, 3))).relu()
        return self.head(z[:, :12])  # type: ignore[no-any-return]


class UpAndDown(nn.Module):
    """Transposed convolutions, plain and depthwise, and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.down = convolutions(3, 16, 24)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(24, 18, 2, 2), nn.PReLU(18), nn.ConvTranspose2d(18, 18, 2, 2, groups=18),
            nn.InstanceNorm2d(18, affine=True), nn.ConvTranspose2d(18, 12, 3, 1, 1, groups=6), nn.GELU(),
        )  # fmt: skip
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.interpolate(self.up(self.down(x)), size=8).mean((2, 3)))  # type: ignore[no-any-return]


def one_dimensional() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 12, 5, 2), nn.BatchNorm1d(12, affine=False), nn.ReLU(), nn.Conv1d(12, 16, 3, groups=4),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16 * 14, 30), nn.LayerNorm(30), nn.Dropout(0.5), nn.SiLU(),
        nn.Linear(30, CLASSES),
    )  # fmt: skip


def three_dimensional() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.Hardswish(), nn.AvgPool3d(2), nn.Conv3d(8, 10, 3),
        nn.GroupNorm(5, 10), nn.LeakyReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(10, CLASSES),
    )  # fmt: skip


def group_norm_resnet() -> nn.Module:
    return torchvision.models.ResNet(
        BasicBlock, [1, 1, 1, 1], num_classes=CLASSES, norm_layer=partial(nn.GroupNorm, 16)
    )


def resnext() -> nn.Module:
    return torchvision.models.ResNet(
        torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, groups=8, width_per_group=4
    )


def vision_transformer() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=8, hidden_dim=64, mlp_dim=128, num_classes=CLASSES
    )


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet50": partial(torchvision.models.resnet50, num_classes=CLASSES),
    "mobilenet_v2": partial(torchvision.models.mobilenet_v2, num_classes=CLASSES),
    "mobilenet_v3_small": partial(torchvision.models.mobilenet_v3_small, num_classes=CLASSES),
    "densenet": partial(
        torchvision.models.DenseNet, growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=CLASSES
    ),
    "vision_transformer": vision_transformer,
    "group_norm_resnet": group_norm_resnet,
    "norm_free_resnet": Scaled,
    "crelu": lambda: Sequence(
        nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), CReLU(), nn.Conv2d(24, 20, 3, 2, 1), CReLU()),
        lambda x: x.mean((2, 3)),
        nn.Linear(40, CLASSES),
    ),
    "pooled_pair": lambda: Sequence(convolutions(3, 16, 24), pooled_pair, nn.Linear(48, CLASSES)),
    "channels_last": lambda: Sequence(convolutions(3, 16, 24, 20), channels_last, nn.Linear(320, CLASSES)),
    "resnext": resnext,
    "shared": Shared,
    "recursive": recursive,
    "hard_coded": HardCoded,
    "sequential": lambda: nn.Sequential(
        *convolutions(3, 16, 24, 20), nn.Flatten(), nn.Linear(320, 40), nn.ReLU(), nn.Linear(40, CLASSES)
    ),
    "inception": Inception,
    "transformer": Transformer,
    "own_attention": OwnAttention,
    "gated": Gated,
    "up_and_down": UpAndDown,
    "one_dimensional": one_dimensional,
    "three_dimensional": three_dimensional,
    **ATTENTION,
}
EXAMPLES: Mapping[str, Tensor] = {
    "transformer": torch.zeros(1, 12, dtype=torch.int64),
    "one_dimensional": torch.zeros(1, 2, 64),
    "three_dimensional": torch.zeros(1, 1, 12, 12, 12),
}
