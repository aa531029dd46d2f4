from __future__ import annotations

import pytest
import torch

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import build_backbone


@pytest.mark.parametrize(("name", "parameters"), [("resnet10", 4_903_242), ("resnet18", 11_173_962)])
def test_parameter_counts_of_the_paper(name: str, parameters: int) -> None:
    model = build_backbone(ModelArgs(model=name), num_classes=10, seed=1)
    assert sum(tensor.numel() for tensor in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["resnet10", "resnet18"])
def test_forward_is_predict_of_encode(name: str) -> None:
    model = build_backbone(ModelArgs(model=name, width=4), num_classes=7, seed=1).eval()
    images = torch.randn(2, 3, 28, 28)
    representations = model.encode(images)
    assert representations.shape == (2, 32)
    assert torch.equal(model(images), model.predict(representations))
    assert model(images).shape == (2, 7)


def test_initialisation_depends_on_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        return build_backbone(ModelArgs(model="resnet10", width=4), 10, seed).predictor.weight

    first = weights(1)
    torch.manual_seed(99)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


def test_unknown_backbone_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="did you mean `resnet18`"):
        build_backbone(ModelArgs(model="resnet19"), 10, 1)
