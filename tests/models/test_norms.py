"""Norms are found by their type, or by what other libraries call them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedml_dapper.models.norms import norm_tensors


class LlamaRMSNorm(nn.Module):
    """As Hugging Face's are: no class of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class NormalisedLinear(nn.Module):
    """No norm, for all its name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))


class NormalBias(nn.Module):
    """No norm either."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (nn.RMSNorm(4), {"0.weight"}),
        (LlamaRMSNorm(), {"0.weight"}),
        (NormalisedLinear(), set()),
        (NormalBias(), set()),
        (nn.Linear(4, 4), set()),
    ],
)
def test_a_norm_is_known_by_its_type_or_its_name(layer: nn.Module, found: set[str]) -> None:
    assert norm_tensors(nn.Sequential(layer)) == found
