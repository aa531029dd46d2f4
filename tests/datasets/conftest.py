"""Small suites built from numbers, and the real data where it is to be had."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedml_dapper.datasets import Domain, ImageSet, Preprocessing, Suite

_BESIDE_THE_REPOSITORY = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def real_data() -> Callable[..., Path]:
    """``real_data("a.npz", ...)``: the folder that has these files; skips the test when one is missing."""

    def find(*files: str) -> Path:
        root = Path(os.environ.get("DAPPER_DATA") or _BESIDE_THE_REPOSITORY)
        missing = [file for file in files if not (root / file).is_file()]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: set DAPPER_DATA to the folder that has it")
        return root

    return find


def _image_set(labels: torch.Tensor, size: int) -> ImageSet:
    """Images whose pixels tell which sample they are."""
    pixels = torch.arange(len(labels) * 3 * size * size) * 7919 % 251
    images = pixels.view(-1, 3, size, size).to(torch.uint8)
    return ImageSet(images, labels, Preprocessing(size, crop_padding=2))


@pytest.fixture
def image_set() -> Callable[..., ImageSet]:
    """``image_set(labels, size=8)``: images whose pixels tell which sample they are."""

    def make(labels: list[int] | torch.Tensor, size: int = 8) -> ImageSet:
        return _image_set(torch.as_tensor(labels), size)

    return make


@pytest.fixture
def small_suite() -> Callable[..., Suite]:
    """``small_suite(sizes, swap=False)``: a suite of 4 classes with domains of ``sizes`` training images."""

    def make(sizes: list[int], *, swap: bool = False, share: float = 0.2) -> Suite:
        domains = tuple(
            Domain(f"d{index}", _image_set(torch.arange(size) % 4, 8), _image_set(torch.arange(4), 8), "test", False)
            for index, size in enumerate(sizes)
        )
        return Suite("small", domains, tuple("abcd"), share, swap)

    return make
