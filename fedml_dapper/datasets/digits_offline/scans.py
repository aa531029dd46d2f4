"""The domain ``scans``: handwritten digits in dark ink on light paper, from the 8 x 8 scans that scikit-learn ships."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedml_dapper.datasets.digits_offline.canvas import (
    SIZE,
    TEST_PER_CLASS,
    TRAIN_PER_CLASS,
    balanced_labels,
    clouds,
    generator,
    image_set,
    paint,
    place,
    uniform,
)
from fedml_dapper.datasets.digits_offline.shipped_files import DIGITS, shipped
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.sources import Splits


def render() -> Splits:
    """Draw the domain from every other scan; ``blended`` has those between."""
    train, test = scans(remainder=0)
    return Splits(_render(train, generator(1)), _render(test, generator(2)))


def scans(remainder: int) -> tuple[Tensor, Tensor]:
    """Return training and test masks (N, 1, 8, 8), ordered by digit.

    Of each digit these are the scans whose position is ``remainder`` modulo 2.
    """
    table = np.loadtxt(shipped("sklearn", DIGITS), np.float32, delimiter=",")
    masks = torch.from_numpy(table[:, :-1].reshape(-1, 8, 8)) / 16
    labels = torch.from_numpy(table[:, -1])
    of_digit = [masks[labels == digit][remainder::2].unsqueeze(1) for digit in range(10)]
    train = torch.cat([masks_of_one[:TRAIN_PER_CLASS] for masks_of_one in of_digit])
    return train, torch.cat([masks_of_one[-TEST_PER_CLASS:] for masks_of_one in of_digit])


def strokes(masks: Tensor, rng: torch.Generator) -> Tensor:
    """Enlarge 8 x 8 masks to (N, 1, 32, 32) with smooth, crisp edges, slightly off centre."""
    count = len(masks)
    framed = F.pad(masks, (1, 1, 1, 1))
    placed = place(framed, uniform(0.95, 1.1, (count,), rng), uniform(-1.5, 1.5, (count, 2), rng))
    crisp = ((placed - 0.25) / 0.4).clamp(0, 1)
    return crisp * crisp * (3 - 2 * crisp)


def _render(masks: Tensor, rng: torch.Generator) -> ImageSet:
    count = len(masks)
    mask = strokes(masks, rng)
    light = uniform(0.82, 0.97, (count, 1, 1, 1), rng)
    paper = light - torch.tensor([0.0, 0.02, 0.09]).view(3, 1, 1) * uniform(0, 1.5, (count, 1, 1, 1), rng)
    shade = 0.04 * clouds(count, 3, rng)[:, :1]
    grain = uniform(-0.02, 0.02, (count, 1, SIZE, SIZE), rng)
    blue = torch.tensor([0.0, 0.05, 0.35]).view(3, 1, 1) * uniform(0, 1, (count, 1, 1, 1), rng)
    ink = uniform(0.05, 0.25, (count, 1, 1, 1), rng) + blue
    return image_set(paint(paper, ink, mask) + shade + grain, balanced_labels(count // 10))
