from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedml_dapper.config import ModelArgs, Norm
from fedml_dapper.models import build_backbone
from fedml_dapper.models.skipping import SkippingConv

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


@pytest.mark.nightly
def test_narrow_networks_train_on_several_threads() -> None:
    """With a strided 1x1 convolution in place of ours this process dies."""
    finished = subprocess.run([sys.executable, "-c", NARROW], capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr


class Layouts(TorchDispatchMode):
    """Counts what rectifiers' gradients are made of, by how it lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.channels_last: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.threshold_backward.default:
            tensors = [value for value in args if isinstance(value, Tensor)]
            self.channels_last.append(all(one.is_contiguous(memory_format=torch.channels_last) for one in tensors))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", get_args(Norm))
def test_gradients_keep_the_channels_last(norm: Norm) -> None:
    """All but that of the mean over the last stage, which is small."""
    network = build_backbone(ModelArgs(model="resnet10", width=8, norm=norm), 10, seed=1)
    images = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    with Layouts() as seen:
        network(images).square().mean().backward()
    assert seen.channels_last == [False] + [True] * 8
