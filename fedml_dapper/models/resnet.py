"""ResNet10 and ResNet18 with the CIFAR stem: 3x3 stride 1, no max-pool (He et al., CVPR 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.models.backbone import Backbone

WIDTH = 64
"""Channels of the first stage as published."""


class SkippingConv(nn.Conv2d):
    """A 1x1 convolution with stride, which leaves out what the stride skips before it computes.

    The same numbers; but oneDNN's own way of skipping, for images with the channels last and fewer input channels than
    a vector register holds, writes past its memory when it computes gradients on several threads (oneDNN issue 6035).
    """

    def forward(self, input: Tensor) -> Tensor:
        rows, columns = self.stride
        return F.conv2d(input[:, :, ::rows, ::columns], self.weight, self.bias)


class BasicBlock(nn.Module):
    """conv3x3 - BN - ReLU - conv3x3 - BN plus the shortcut (1x1 conv - BN where shapes differ), then ReLU.

    ReLU and sum are in place, which moves less memory: no gradient needs what they overwrite.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                SkippingConv(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def residual(self, x: Tensor) -> Tensor:
        """What the block adds to its shortcut."""
        added: Tensor = self.bn2(self.conv2(F.relu_(self.bn1(self.conv1(x)))))
        return added

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.residual(x).add_(self.shortcut(x)))


class ResNet(Backbone):
    """Stages of 1, 2, 4 and 8 times ``width`` channels; z is the globally averaged last stage, d = 8 ``width``."""

    def __init__(self, blocks_per_stage: Sequence[int], width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        stages, channels = [], width
        for index, num_blocks in enumerate(blocks_per_stage):
            out_channels = width * 2**index
            strides = [1 if index == 0 else 2] + [1] * (num_blocks - 1)
            blocks = []
            for stride in strides:
                blocks.append(BasicBlock(channels, out_channels, stride))
                channels = out_channels
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.predictor = nn.Linear(channels, num_classes)

    def conv_stages(self) -> list[nn.Sequential]:
        return [self.stem, *cast("list[nn.Sequential]", list(self.stages))]

    def encode(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(images))
        return features.mean(dim=(2, 3))


def resnet10(width: int, num_classes: int, input_size: int) -> ResNet:
    """One block a stage; 4,903,242 parameters at width 64 and 10 classes, for images of any size."""
    del input_size
    return ResNet([1, 1, 1, 1], width, num_classes)


def resnet18(width: int, num_classes: int, input_size: int) -> ResNet:
    """Two blocks a stage; 11,173,962 parameters at width 64 and 10 classes, for images of any size."""
    del input_size
    return ResNet([2, 2, 2, 2], width, num_classes)
