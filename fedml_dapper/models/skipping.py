"""1x1 convolutions with stride that drop skipped pixels before they compute."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.models.plain import RewrittenConv, like


class SkippingConv(RewrittenConv):
    """A 1x1 convolution with stride, with the same results as torch's.

    It avoids oneDNN's own skipping. For images with the channels last and fewer input channels than a vector register
    holds, that writes past its memory when it computes gradients on several threads (oneDNN issue 6035).
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(skipped(input, self.stride), self.weight, self.bias)

    def plain(self) -> nn.Conv2d:
        return like(self, self.weight)


def skipped(images: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return every ``stride``-th row and column of ``images`` (B, C, H, W) as a view: training holds no copy.

    The gradient of a slice is laid out as the axes are ordered. So images with their channels last are sliced with
    their axes in that order, or ReLUs between the two layouts would make a step of a narrow ResNet up to 15 % longer.
    Pooling over single values keeps the layout, but holds a copy.
    """
    rows, columns = stride
    if max(stride) == 1:
        return images
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1)[:, ::rows, ::columns].permute(0, 3, 1, 2)
    return images[:, :, ::rows, ::columns]
