"""Domain-adaptive regularisation: a penalty on the length of representations (DapperFL, Eq. 3)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

DARNorm = Literal["squared", "l2", "squared_mean"]
"""Measure of length: squared (Eq. 3), plain (the authors' public code), or squared per feature."""


def dar(representations: Tensor, norm: DARNorm = "squared") -> Tensor:
    """Regulariser L_DAR, the batch mean of ||z||_2^2 (Eq. 3), or of one of its variants; ``representations`` is (B,
    d)."""
    if norm == "l2":
        lengths: Tensor = torch.linalg.vector_norm(representations, dim=1)
        return lengths.mean()
    squared = representations.square().sum(dim=1).mean()
    return squared if norm == "squared" else squared / representations.shape[1]
