"""Convolutions that standardise their own weights, without BatchNorm (Brock et al., ICLR 2021; FedWon, ICLR 2024)."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from fedml_dapper.models.plain import RewrittenConv, like
from fedml_dapper.models.skipping import skipped

GROUP = 4
"""Channels per group of GroupNorm, the other norm without batch statistics. Groups are pruned as a whole, so small ones
allow fine budgets."""
RELU_GAIN = 1.7139
"""Gain that restores variance 1 to a rectified unit normal: sqrt(2 / (1 - 1 / pi))."""
_ADDED_VARIANCE = 1e-6
"""Added to the variance of a filter, times its fan-in, before it is divided by, so that a filter of equal weights stays
at zero. Brock et al. divide by no less than 1e-4 instead."""


class StandardisedConv2d(RewrittenConv):
    """A convolution by W'_i = g_i (W_i - mean_i) / (std_i sqrt(fan_in)) x 1.7139, with a bias per filter.

    Mean, standard deviation and fan-in are those of the present filter. So a slim filter is standardised over the
    inputs it has: outputs keep their scale, and nothing has to be measured anew. ``gain`` is g, of shape (out,). A
    little is added to the variance (``_ADDED_VARIANCE``).
    """

    gain: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)
        self.gain = nn.Parameter(torch.ones(out_channels))
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        stride = self.stride
        if self.kernel_size == (1, 1):  # for the reason given at SkippingConv
            input = skipped(input, stride)
            stride = (1, 1)
        return standardised_conv2d(input, self.weight, self.gain, self.bias, stride, self.padding)

    def plain(self) -> nn.Conv2d:
        """Return torch's convolution with the filters as they are standardised now."""
        return like(self, standardised(self.weight, self.gain))


def standardised_conv2d(
    input: Tensor,
    weight: Tensor,
    gain: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...] = (1, 1),
    padding: str | tuple[int, ...] = (0, 0),
) -> Tensor:
    """Compute the convolution of :class:`StandardisedConv2d`, visible to torch's function modes like torch's own."""
    if has_torch_function((input, weight, gain)):
        given = (input, weight, gain, bias, stride, padding)
        convolved: Tensor = handle_torch_function(standardised_conv2d, (input, weight, gain), *given)
        return convolved
    return F.conv2d(input, standardised(weight, gain), bias, stride, padding)


def standardised(weight: Tensor, gain: Tensor) -> Tensor:
    """Return the standardised filters (out, in, kH, kW) for a gain (out,).

    By one operation of torch, a group norm whose groups are the filters: a fifth of the time of mean, variance and
    products one by one, which took a fifth of a small network's step.
    """
    filters = len(weight)
    fan_in = weight[0].numel()
    rows = weight.reshape(1, filters, fan_in)
    scale = gain * (RELU_GAIN / sqrt(fan_in))
    return torch.group_norm(rows, filters, scale, eps=_ADDED_VARIANCE / fan_in).view(weight.shape)
