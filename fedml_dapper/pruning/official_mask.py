"""Masks of the authors' public code, for comparison only: nothing becomes smaller.

Every convolution but the stem loses its weakest input channels and then its weakest output channels, ranked by what the
first step left of each filter. Both happen at the full ratio, so only (1 - ratio)^2 of its weights survive, and masks
of neighbouring layers do not line up. The first block's conv1 and the network's first shortcut are cut on outputs only.
BatchNorm weights are masked one by one; their biases and statistics stay. The predictor loses input features by l2
norm.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from fedml_dapper.models import Backbone


def official_masks(model: Backbone, ratio: float) -> dict[str, Tensor]:
    """Return weight name -> 0/1 mask of the weight's shape, chosen from the present weights of ``model``."""
    scratch = copy.deepcopy(model)
    convolutions = masked_convolutions(scratch)
    norms = [layer for layer in scratch.modules() if isinstance(layer, nn.BatchNorm2d) and layer.affine][1:]
    first_shortcut = next((layer for layer in convolutions if layer.kernel_size == (1, 1)), None)
    for layer in convolutions:
        if layer is not convolutions[0] and layer is not first_shortcut:
            _mask_channels(layer, ratio, norm=1, dim=1)
        _mask_channels(layer, ratio, norm=1, dim=0)
    for norm in norms:
        prune.l1_unstructured(norm, "weight", amount=ratio)  # type: ignore[no-untyped-call]
    _mask_channels(scratch.predictor, ratio, norm=2, dim=1)
    return {name.removesuffix("_mask"): mask for name, mask in scratch.named_buffers() if name.endswith("weight_mask")}


def masked_convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """Convolutions that lose weights: all of images but the stem."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)][1:]


def _mask_channels(layer: nn.Module, ratio: float, norm: int, dim: int) -> None:
    prune.ln_structured(layer, "weight", amount=ratio, n=norm, dim=dim)  # type: ignore[no-untyped-call]


@torch.no_grad()
def apply_masks(model: nn.Module, masks: dict[str, Tensor]) -> None:
    """Set masked weights to zero; called after every optimizer step, so that only kept weights ever move."""
    for name, mask in masks.items():
        model.get_parameter(name).mul_(mask)
