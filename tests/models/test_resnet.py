from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedml_dapper.models.resnet import SkippingConv

NARROW = """
import torch
from fedml_dapper.config import ModelArgs
from fedml_dapper.models import build_backbone
torch.set_num_threads(2)
model = build_backbone(ModelArgs(model="resnet10", width=8), 10, 1)
for _ in range(5):
    model(torch.randn(63, 3, 32, 32).to(memory_format=torch.channels_last)).sum().backward()
"""


@pytest.mark.parametrize("channels", [5, 16])
def test_a_skipping_convolution_is_a_strided_one(channels: int) -> None:
    ours = SkippingConv(channels, 7, 1, 2)
    plain = nn.Conv2d(channels, 7, 1, 2)
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(3, channels, 9, 8)
    results = []
    for layer in (ours, plain):
        given = images.clone().requires_grad_()
        output = layer(given)
        output.square().sum().backward()
        results.append((output, given.grad, layer.weight.grad))
    for one, other in zip(*results, strict=True):
        assert one is not None
        assert torch.allclose(one, other, atol=1e-5)


def test_narrow_networks_train_on_several_threads() -> None:
    """With a strided 1x1 convolution in place of ours this process dies."""
    finished = subprocess.run([sys.executable, "-c", NARROW], capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr
