"""The domain ``blended``: handwritten digits over patches of scikit-learn's two sample photographs, as in MNIST-M."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedml_dapper.datasets.digits_offline.canvas import SIZE, balanced_labels, generator, image_set, uniform
from fedml_dapper.datasets.digits_offline.scans import scans, strokes
from fedml_dapper.datasets.digits_offline.shipped_files import PHOTOGRAPHS, shipped
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.preprocessing import resize
from fedml_dapper.datasets.sources import Splits

_PHOTO_SIZE = 224
"""Side to which photographs are shrunk, in pixels, so that a patch shows more than flat colour."""

_TRAIN_COLUMNS = 160
"""Column that divides a photograph: training patches lie left of it, test patches right of it."""


def render() -> Splits:
    """Draw the domain from the scans that ``scans`` leaves."""
    pixels = np.stack([np.asarray(Image.open(shipped("sklearn", name))) for name in PHOTOGRAPHS])
    photos = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    left, right = torch.tensor_split(resize(photos, _PHOTO_SIZE), [_TRAIN_COLUMNS], dim=3)
    train, test = scans(remainder=1)
    return Splits(_render(train, left, generator(3)), _render(test, right, generator(4)))


def _render(masks: Tensor, photos: Tensor, rng: torch.Generator) -> ImageSet:
    """Invert the photograph beneath each digit: bright on dark, dark on bright."""
    count = len(masks)
    patches = _patches(photos, count, rng)
    mask = strokes(masks, rng)
    ink = uniform(0.75, 1.0, (count, 3, 1, 1), rng)
    return image_set((patches - ink * mask).abs(), balanced_labels(count // 10))


def _patches(photos: Tensor, count: int, rng: torch.Generator) -> Tensor:
    windows = photos.unfold(2, SIZE, 1).unfold(3, SIZE, 1)
    photo, row, column = (torch.randint(windows.shape[axis], (count,), generator=rng) for axis in (0, 2, 3))
    return windows[photo, :, row, column].float() / 255
