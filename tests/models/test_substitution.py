"""Networks run with other tensors in the place of their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedml_dapper.models.substitution import run_with


def recursive() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)


class Tied(nn.Module):
    """Two layers of one weight, as a language model's first and last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(inputs).tanh())
        return outputs


@torch.no_grad()
def test_a_layer_under_several_names_is_replaced_and_gets_its_own_tensors_back() -> None:
    model, other, inputs = recursive(), recursive(), torch.randn(3, 4)
    before = [*model.parameters()]
    assert torch.equal(run_with(model, dict(other.named_parameters()), (inputs,)), other(inputs))
    after = [*model.parameters()]
    assert len(after) == len(before) == 2
    assert all(mine is its for mine, its in zip(after, before, strict=True))


@torch.no_grad()
def test_a_tensor_of_several_layers_is_replaced_in_all_of_them_by_any_of_its_names() -> None:
    model, other, inputs = Tied(), Tied(), torch.randn(3, 4)
    for name in ("first.weight", "last.weight"):
        tensors = {name: other.first.weight, "first.bias": other.first.bias}
        assert torch.equal(run_with(model, tensors, (inputs,)), other(inputs))
        assert model.last.weight is model.first.weight


def test_gradients_reach_what_stands_in() -> None:
    model = recursive()
    weight = torch.zeros(4, 4, requires_grad=True)
    run_with(model, {"0.weight": weight}, (torch.ones(1, 4),)).sum().backward()
    assert weight.grad is not None
    assert model[0].weight.grad is None  # type: ignore[index]
