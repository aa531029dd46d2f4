"""Gradients clipped unit by unit to a share of what they change (adaptive clipping, Brock et al., ICML 2021)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_SMALLEST_NORM = 1e-3
"""Least norm of a unit: weights at zero may still move."""


@torch.no_grad()
def clip_adaptively(parameters: Iterable[nn.Parameter], share: float) -> None:
    """Bring each unit's gradient down to ``share`` times the norm of its weights (Eq. 3).

    A unit is a row of a matrix, or a filter; a vector of gains or biases is one as a whole. Parameters without a
    gradient stay out of it, as does whatever the caller leaves out (in the paper the last layer).
    """
    for parameter in parameters:
        if parameter.grad is not None:
            limit = share * _norms(parameter).clamp(min=_SMALLEST_NORM)
            parameter.grad.mul_((limit / _norms(parameter.grad).clamp(min=1e-6)).clamp(max=1))


def _norms(tensor: Tensor) -> Tensor:
    """Norm of each unit, in a shape that broadcasts with ``tensor``."""
    axes = tuple(range(1, tensor.dim())) or (0,)
    return torch.linalg.vector_norm(tensor, dim=axes, keepdim=True) if tensor.dim() else tensor.abs()
