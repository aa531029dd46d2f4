"""Which weights the masks of the authors' public code leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

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


def weakest_zeroed(weights: NDArray[np.float64], ratio: float, dim: int, power: int) -> NDArray[np.float64]:
    """``weights`` without the round(ratio * channels) channels of the smallest norm along ``dim``."""
    others = tuple(axis for axis in range(weights.ndim) if axis != dim)
    order = np.argsort((np.abs(weights) ** power).sum(axis=others))
    left = weights.copy()
    left[(slice(None),) * dim + (order[: round(ratio * len(order))],)] = 0
    return left


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6, 0.8])
def test_the_authors_order_inputs_before_outputs_element_by_element(ratio: float) -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=6), 10, seed=3)
    convolutions = [name for name, tensor in model.named_parameters() if tensor.dim() == 4][1:]
    masks = official_masks(model, ratio)
    assert {*convolutions, "predictor.weight"} <= masks.keys()
    differs_from_outputs_first = False
    for name in convolutions:
        weights = model.get_parameter(name).detach().double().numpy()
        outputs_only = name in ("stages.0.0.conv1.weight", "stages.1.0.shortcut.0.weight")
        after_inputs = weights if outputs_only else weakest_zeroed(weights, ratio, dim=1, power=1)
        by_hand = weakest_zeroed(after_inputs, ratio, dim=0, power=1) != 0
        assert np.array_equal(masks[name].numpy() != 0, by_hand), name
        if not outputs_only:
            reverse = weakest_zeroed(weakest_zeroed(weights, ratio, dim=0, power=1), ratio, dim=1, power=1)
            differs_from_outputs_first |= not np.array_equal(reverse != 0, by_hand)
    assert differs_from_outputs_first  # or the test could not tell the orders apart
    predictor = model.predictor.weight.detach().double().numpy()
    assert np.array_equal(masks["predictor.weight"].numpy() != 0, weakest_zeroed(predictor, ratio, 1, 2) != 0)
