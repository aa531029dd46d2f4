"""1x1 convolutions with stride that drop skipped pixels before they compute."""

from __future__ import annotations

from typing import Any

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
    """Return every ``stride``-th row and column of ``images`` (B, C, H, W) as a view: training holds no copy."""
    if max(stride) == 1:
        return images
    return _Skip.apply(images, *stride)  # type: ignore[no-any-return]  # torch does not declare it


class _Skip(torch.autograd.Function):
    """A slice whose gradient has the memory layout of the images.

    The gradient of torch's slice has the channels first, and so has what is added to it; ReLUs between the two layouts
    made a step of a narrow ResNet up to 15 % longer. Pooling over single values keeps the layout, but holds a copy.
    """

    @staticmethod
    def forward(images: Tensor, rows: int, columns: int) -> Tensor:
        return images[:, :, ::rows, ::columns]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, *ctx.steps = inputs
        ctx.shape = images.shape
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        ctx.layout = torch.channels_last if channels_last else torch.contiguous_format

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        rows, columns = ctx.steps
        images = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.layout).zero_()
        images[:, :, ::rows, ::columns] = gradient
        return images, None, None
