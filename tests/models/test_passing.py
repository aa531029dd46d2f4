"""Several tensors are handed to a network as its ``forward`` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs
from fedml_dapper.models.adopt import adopt

EXAMPLE = {"ids": torch.tensor([[1, 2, 3]]), "mask": torch.tensor([[1, 1, 0]])}
PAIR = (EXAMPLE["ids"], EXAMPLE["mask"])


class Words(nn.Module):
    """Masked means of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(5, 6), nn.Linear(6, 3)

    def of(self, ids: Tensor, mask: Tensor) -> Tensor:
        shares = mask / mask.sum(1, keepdim=True)
        logits: Tensor = self.fc((shares[..., None] * self.words(ids)).sum(1))
        return logits


class ByName(Words):
    def forward(self, mask: Tensor, ids: Tensor, dropped: Tensor | None = None) -> Tensor:
        assert dropped is None
        return self.of(ids, mask)


class AsOne(Words):
    def forward(self, x: Mapping[str, Tensor] | tuple[Tensor, Tensor], *, scale: float = 1) -> Tensor:
        ids, mask = (x["ids"], x["mask"]) if isinstance(x, Mapping) else x
        return scale * self.of(ids, mask)


class AnyNames(Words):
    def forward(self, **named: Tensor) -> Tensor:
        return self.of(**named)


class InOrder(Words):
    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        assert second is not None
        return self.of(first, second)


class BothInOrder(Words):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.of(first, second)


class AnyNumber(Words):
    def forward(self, *several: Tensor) -> Tensor:
        return self.of(*several)


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (ByName(), EXAMPLE), (AsOne(), EXAMPLE), (AnyNames(), EXAMPLE),
        (InOrder(), PAIR), (AsOne(), PAIR), (AnyNumber(), PAIR),
    ],
)  # fmt: skip
def test_networks_get_them_as_they_take_them(module: Any, example: Inputs) -> None:
    backbone = adopt(module, example).eval()
    assert backbone.predictor_name == "fc"
    assert backbone.has_representations
    assert torch.equal(backbone(example), module.of(*PAIR))
    assert torch.equal(backbone.predict(backbone.encode(example)), backbone(example))


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (BothInOrder(), EXAMPLE, r"takes neither the inputs' entries \(ids, mask\) nor all .*; name its parameters as"),
        (ByName(), (*PAIR, *PAIR), r"takes neither the inputs' entries \(4 tensors\) nor"),
        (AsOne(), {"words": PAIR[0]}, r"inputs of shape {words: \(B, 3\) int64}: KeyError: 'ids'"),
    ],
)
def test_what_does_not_fit_is_one_line(module: nn.Module, example: Inputs, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        adopt(module, example)
    assert "\n" not in str(caught.value)
