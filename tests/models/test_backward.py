"""What fails on the way back is one line when a network is adopted, with the layer and the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedml_dapper.errors import ConfigError
from fedml_dapper.models import adopt, example_image

EXAMPLE = example_image(8)


class Net(nn.Module):
    """Two convolutions, a head, and what the user does between them."""

    def __init__(self, between: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1), nn.Linear(6, 4)
        self.between = between
        self.kept: Tensor | None = None

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.b(self.between(self, F.relu(self.a(images)))).mean((2, 3)))


class Silent(Net):
    """A network whose ``train`` returns nothing."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


def doubled_in_place(_net: Net, x: Tensor) -> Tensor:
    x[:, :2] *= 2
    return x


def behind_a_layer(net: Net, x: Tensor) -> Tensor:
    copy = x + 0
    result: Tensor = net.b(copy)
    copy.add_(1)
    return result


def moving_average(net: Net, x: Tensor) -> Tensor:
    now = x.mean(0, keepdim=True)
    net.kept = now if net.kept is None else 0.9 * net.kept + 0.1 * now
    return x - net.kept


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise ValueError("forgotten")


REFUSED: Mapping[str, tuple[nn.Module, str]] = {
    "in place": (Net(doubled_in_place), "what `relu` in the network itself keeps for its gradient is overwritten"),
    "in place, of a train that returns nothing": (Silent(doubled_in_place), "what `relu` in the network itself keeps"),
    "in place behind a layer": (Net(behind_a_layer), "what `convolution` in `b` keeps for its gradient is overwritten"),
    "inplace=True": (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(6, 4)),
        "what `sigmoid` in `2` keeps .* inplace=False for inplace=True",
    ),
    "kept of the step before": (Net(moving_average), r"of an earlier step, .*; keep x.detach\(\)"),
    "a function of one's own": (Net(lambda _, x: Rounded.apply(x)), r"fails: ValueError: forgotten \(test_backward.py"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_trained_is_one_line_with_the_way_out(kind: str) -> None:
    module, message = REFUSED[kind]
    with pytest.raises(ConfigError, match=f"cannot be trained: .*{message}") as caught:
        adopt(module, EXAMPLE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "between",
    [
        lambda _, x: F.relu(x + 0, inplace=True),
        lambda net, x: F.dropout(x + 0, 0.5, net.training, inplace=True),
        lambda net, x: checkpoint(net.b, x, use_reentrant=False),
    ],
    ids=["relu in place", "dropout in place", "a checkpoint"],
)
def test_what_autograd_allows_is_allowed(between: Callable[[Net, Tensor], Tensor]) -> None:
    net = Net(between)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    adopt(net, EXAMPLE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
