"""Operations between layers: what works on positions alone, or on values one by one, lets channels through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.pruning import trace_layout

Operation = Callable[[Tensor], Tensor]
doubled = partial(F.interpolate, scale_factor=2)
THROUGH: Mapping[str, tuple[Operation, int]] = {
    "nearest-exact of series": (partial(doubled, mode="nearest-exact"), 1),
    "nearest-exact of images": (partial(doubled, mode="nearest-exact"), 2),
    "nearest-exact of volumes": (partial(doubled, mode="nearest-exact"), 3),
    "bicubic, smoothed": (partial(doubled, mode="bicubic", antialias=True), 2),
    "area": (partial(F.interpolate, size=5, mode="area"), 2),
    "around the image": (partial(F.pad, pad=(1, 2, 1, 0), mode="circular"), 2),
    "mirrored": (partial(F.pad, pad=(1, 1), mode="reflect"), 1),
    "zeros": (partial(F.pad, pad=(0, 1)), 3),
    "another dtype": (lambda x: x.double().square().float(), 2),
}
WHOLE: Mapping[str, tuple[Operation, int, str]] = {
    "padded channels": (lambda x: F.pad(x, (0, 0, 2, 2))[:, 2:-2], 1, "padding works along the channels"),
    "shuffled": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), 2, "`pixel_"),
    "folded": (lambda x: F.fold(F.unfold(x, 2, stride=2), 8, 2, stride=2), 2, "`im2col` is not known"),
    "unpooled": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), 2, "`max_unpool2d` is not"),
    "neighbours": (lambda x: F.local_response_norm(x, 3), 2, "along the channels"),
}


class Between(nn.Module):
    """Two convolutions over so many axes, with an operation between them, and a linear head."""

    def __init__(self, operation: Operation, dims: int) -> None:
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.operation = operation
        self.first = convolution(3, 8, 3, padding=1)
        self.second = convolution(8, 12, 1)
        self.last = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.operation(self.first(x))).relu().flatten(2).mean(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", THROUGH)
def test_what_leaves_channels_where_they_are(name: str) -> None:
    operation, dims = THROUGH[name]
    layout = trace_layout(Between(operation, dims), torch.zeros(1, 3, *[8] * dims), "internal")
    assert {name: group.channels for name, group in layout.groups.items()} == {"first": 8}
    assert layout.notes == ()


@pytest.mark.parametrize("name", WHOLE)
def test_what_does_not_is_named(name: str) -> None:
    operation, dims, why = WHOLE[name]
    layout = trace_layout(Between(operation, dims), torch.zeros(1, 3, *[8] * dims), "internal")
    assert layout.groups == {}
    [note] = layout.notes
    assert note.startswith("`first` not cut: ")
    assert why in note


def test_a_convolution_that_pads_around_the_image() -> None:
    network = Between(nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), 2)
    layout = trace_layout(network, torch.zeros(1, 3, 8, 8), "internal")
    assert set(layout.groups) == {"operation", "first"}
