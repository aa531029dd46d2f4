"""ResNet10 and ResNet18 with the CIFAR stem: 3x3 stride 1, no max-pool (He et al., CVPR 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import Norm
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.skipping import SkippingConv
from fedml_dapper.models.standardised import GROUP, StandardisedConv2d

WIDTH = 64
"""Channels of the first stage as published."""


@dataclass(frozen=True)
class Normalisation:
    """A way to keep activations in scale."""

    conv: Callable[..., nn.Conv2d]
    """Makes convolutions."""
    pointwise: Callable[..., nn.Conv2d]
    """Makes 1x1 convolutions."""
    behind: Callable[[int], nn.Module]
    """Makes the layer behind a convolution, from its number of channels."""
    of_sums: float = 1.0
    """Factor on the sum of a block and its shortcut."""


_PLAIN = (partial(nn.Conv2d, bias=False), partial(SkippingConv, bias=False))
NORMALISATIONS: Mapping[Norm, Normalisation] = {
    "batch": Normalisation(*_PLAIN, nn.BatchNorm2d),
    "group": Normalisation(*_PLAIN, lambda channels: nn.GroupNorm(max(1, channels // GROUP), channels)),
    "standardised": Normalisation(
        StandardisedConv2d, StandardisedConv2d, lambda channels: nn.Identity(), of_sums=1 / sqrt(2)
    ),
}


class BasicBlock(nn.Module):
    """Residual block: conv3x3 - BN - ReLU - conv3x3 - BN plus the shortcut, then ReLU.

    The shortcut is conv1x1 - BN where shapes differ. Another ``norm`` replaces each BN by another layer or none. ReLU
    and sum are in place, which moves less memory: no gradient needs what they overwrite.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = norm.conv(in_channels, out_channels, 3, stride, padding=1)
        self.bn1 = norm.behind(out_channels)
        self.conv2 = norm.conv(out_channels, out_channels, 3, padding=1)
        self.bn2 = norm.behind(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                norm.pointwise(in_channels, out_channels, 1, stride), norm.behind(out_channels)
            )
        self.of_sums = norm.of_sums

    def residual(self, x: Tensor) -> Tensor:
        """Return what the block adds to its shortcut."""
        added: Tensor = self.bn2(self.conv2(F.relu_(self.bn1(self.conv1(x)))))
        return added

    def forward(self, x: Tensor) -> Tensor:
        return self.rectified_sum(self.residual(x), self.shortcut(x))

    def rectified_sum(self, added: Tensor, kept: Tensor) -> Tensor:
        """Return the block's output; ``added`` is overwritten."""
        total = added.add_(kept)
        return F.relu_(total if self.of_sums == 1 else total.mul_(self.of_sums))


class ResNet(Backbone):
    """A ResNet with stages of 1, 2, 4 and 8 times ``width`` channels; z is the averaged last stage, d = 8 ``width``."""

    def __init__(self, blocks_per_stage: Sequence[int], width: int, num_classes: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.norm: Norm = norm
        chosen = NORMALISATIONS[norm]
        self.stem = nn.Sequential(chosen.conv(3, width, 3, padding=1), chosen.behind(width), nn.ReLU(inplace=True))
        stages = []
        channels = width
        for index, num_blocks in enumerate(blocks_per_stage):
            out_channels = width * 2**index
            strides = [1 if index == 0 else 2] + [1] * (num_blocks - 1)
            blocks = []
            for stride in strides:
                blocks.append(BasicBlock(channels, out_channels, stride, chosen))
                channels = out_channels
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.predictor = nn.Linear(channels, num_classes)

    def conv_stages(self) -> list[nn.Sequential]:
        return [self.stem, *cast("list[nn.Sequential]", list(self.stages))]

    def encode(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(images))
        return features.mean(dim=(2, 3))


def resnet10(width: int, num_classes: int, input_size: int, norm: Norm = "batch") -> ResNet:
    """Build ResNet10, one block per stage: 4,903,242 parameters at width 64 and 10 classes, for any image size."""
    del input_size
    return ResNet([1, 1, 1, 1], width, num_classes, norm)


def resnet18(width: int, num_classes: int, input_size: int, norm: Norm = "batch") -> ResNet:
    """Build ResNet18, two blocks per stage: 11,173,962 parameters at width 64 and 10 classes, for any image size."""
    del input_size
    return ResNet([2, 2, 2, 2], width, num_classes, norm)
