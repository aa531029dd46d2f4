"""Networks of others get images with their channels last in memory where they take them so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedml_dapper.models.adopt import adopt
from fedml_dapper.models.copying import with_same_tensors

EXAMPLE = torch.randn(1, 3, 16, 16)
IMAGES = torch.randn(5, 3, 16, 16).contiguous(memory_format=torch.channels_last)


class Viewing(nn.Module):
    """As tutorials write it: counts on the order of axes in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(4)
        self.last = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        x = self.pool(torch.relu(self.conv(x)))
        logits: Tensor = self.last(x.view(-1, 8 * 16))
        return logits


class Flattening(Viewing):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        logits: Tensor = self.last(self.pool(torch.relu(self.conv(x))).flatten(1))
        return logits


def test_a_network_that_views_gets_images_in_the_order_of_their_axes() -> None:
    network = Viewing()
    adopted = adopt(network, EXAMPLE)
    outputs = with_same_tensors(adopted)(IMAGES)
    assert torch.equal(outputs, network(IMAGES.contiguous()))


def test_others_get_them_with_their_channels_last() -> None:
    network = Flattening()
    adopted = adopt(network, EXAMPLE)
    adopted(IMAGES)
    assert network.seen.is_contiguous(memory_format=torch.channels_last)
