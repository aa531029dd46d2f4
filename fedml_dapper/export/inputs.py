"""Samples as exported files take them: pixels, where the network gets pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fedml_dapper.datasets import ClientData, ClientSamples, Preprocessing, TestData, TestSamples, images_of
from fedml_dapper.datasets.preprocessing import resize

DataT = TypeVar("DataT", TestData, ClientData)


class Pixels(Preprocessing):
    """Up to the network's own size, and no further."""

    def evaluate(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, S, S) of ``images`` uint8 (B, 3, H, W)."""
        return resize(images, self.input_size).contiguous()


def as_files_take(data: DataT) -> DataT:
    """``data`` with inputs that are pixels; as they are where they are no pictures."""
    if isinstance(data, TestSamples | ClientSamples) and (images := images_of([data.samples])):
        pixels = Pixels(images[0].preprocessing.input_size)
        return replace(data, samples=replace(images[0], preprocessing=pixels))
    return data


def spread(data: DataT, count: int) -> DataT:
    """``count`` of the samples or all, from all over them, as they may lie class by class."""
    return data.take(torch.linspace(0, data.num_samples - 1, min(count, data.num_samples)).long())
