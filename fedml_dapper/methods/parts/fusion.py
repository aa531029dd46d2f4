"""Fusion of what a client has learnt in one epoch with what it was sent (DapperFL, Eq. 1-2)."""

from __future__ import annotations

import torch
from pydantic import Field

from fedml_dapper.methods.contract import MethodParams
from fedml_dapper.pruning import Tensors


class FusionParams(MethodParams):
    """Settings of the fusion; defaults are the paper's (Table 4)."""

    alpha_0: float = Field(default=0.9, ge=0, le=1)
    """Fusion weight of the global model in round 1."""
    alpha_min: float = Field(default=0.1, ge=0, le=1)
    """Floor of the fusion weight."""
    eps: float = Field(default=0.2, ge=0, le=1)
    """Decay of the fusion weight per round."""
    fusion: bool = True
    """Whether models are fused; False is the ablation "w/o MFP" (the public code never fuses)."""

    def fusion_weight(self, round_: int) -> float:
        """Weight of the received model: alpha^t = max((1 - eps)^(t-1) * alpha_0, alpha_min), t from 1 (Eq. 2); 0 for
        none."""
        return max((1 - self.eps) ** (round_ - 1) * self.alpha_0, self.alpha_min) if self.fusion else 0.0


@torch.no_grad()
def fuse(local: Tensors, received: Tensors, alpha: float) -> None:
    """Fuse in place: w <- alpha W + (1 - alpha) w, for every tensor in ``local`` that was received (Eq. 1).

    Tensors that stay with the client are no part of the global model.
    """
    fused = [tensor for name, tensor in local.items() if name in received]
    sent = [received[name].to(tensor.device) for name, tensor in local.items() if name in received]
    if fused:
        torch._foreach_mul_(fused, 1 - alpha)
        torch._foreach_add_(fused, sent, alpha=alpha)
