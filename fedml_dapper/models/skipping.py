"""1x1 convolutions with stride, which leave out what the stride skips before they compute."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.models.plain import RewrittenConv, like


class SkippingConv(RewrittenConv):
    """A 1x1 convolution with stride, by the same numbers.

    oneDNN's own way of skipping, for images with the channels last and fewer input channels than a vector register
    holds, writes past its memory when it computes gradients on several threads (oneDNN issue 6035).
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(skipped(input, self.stride), self.weight, self.bias)

    def plain(self) -> nn.Conv2d:
        return like(self, self.weight)


def skipped(images: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Every ``stride``-th row and column of ``images`` (B, C, H, W).

    By a pool over single values, whose gradient keeps the channels last. A slice's has them first, and so has what is
    added to it; rectifiers between the two layouts made a step of a narrow ResNet up to 15 % longer.
    """
    return F.avg_pool2d(images, 1, stride) if max(stride) > 1 else images
