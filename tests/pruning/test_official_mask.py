"""Which weights the masks of the authors' public code leave."""

from __future__ import annotations

import torch

from fedml_dapper.config import ModelArgs
from fedml_dapper.models import build_backbone
from fedml_dapper.pruning.official_mask import apply_masks, official_masks


def test_masks_of_the_public_code() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=20), 10, seed=1)
    masks = official_masks(model, 0.6)
    density = {name: float(mask.mean()) for name, mask in masks.items()}
    assert "stem.0.weight" not in masks
    assert "stem.1.weight" not in masks
    assert density["stages.0.0.conv1.weight"] == torch.tensor(0.4)  # outputs only
    assert density["stages.1.0.shortcut.0.weight"] == torch.tensor(0.4)
    assert abs(density["stages.2.0.shortcut.0.weight"] - 0.16) < 1e-6
    assert abs(density["stages.3.0.conv2.weight"] - 0.16) < 1e-6  # (1 - rho)^2
    assert density["stages.0.0.bn1.weight"] == torch.tensor(0.4)
    assert torch.equal(masks["predictor.weight"].amin(0), masks["predictor.weight"].amax(0))  # whole input features
    assert abs(density["predictor.weight"] - 0.4) < 1e-6


def test_masking_zeroes_and_ratio_zero_keeps_all() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1)
    assert all(bool(mask.all()) for mask in official_masks(model, 0.0).values())
    masks = official_masks(model, 0.5)
    apply_masks(model, masks)
    assert all(bool((model.get_parameter(name)[mask == 0] == 0).all()) for name, mask in masks.items())
    assert all(bool((model.get_parameter(name)[mask == 1] != 0).any()) for name, mask in masks.items())
