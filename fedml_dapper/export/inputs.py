"""Samples in the form that exported files take: pixels, if the network gets pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fedml_dapper.datasets import ClientData, ClientSamples, Preprocessing, TestData, TestSamples, images_of
from fedml_dapper.datasets.preprocessing import resize

DataT = TypeVar("DataT", TestData, ClientData)


class Pixels(Preprocessing):
    """Preprocessing that ends after resizing, with pixels."""

    def evaluate(self, images: Tensor) -> Tensor:
        """Resize ``images`` uint8 (B, 3, H, W) to uint8 (B, 3, S, S)."""
        return resize(images, self.input_size).contiguous()


def as_pixels(data: DataT) -> DataT:
    """Return ``data`` with pixels as inputs; unchanged where they are no pictures."""
    if isinstance(data, TestSamples | ClientSamples) and (images := images_of([data.samples])):
        pixels = Pixels(images[0].preprocessing.input_size)
        return replace(data, samples=replace(images[0], preprocessing=pixels))
    return data


def spread(data: DataT, count: int) -> DataT:
    """Take ``count`` of the samples, or all, evenly spaced, as samples may be sorted by class."""
    return data.take(torch.linspace(0, data.num_samples - 1, min(count, data.num_samples)).long())
