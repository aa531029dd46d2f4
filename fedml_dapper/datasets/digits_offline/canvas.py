"""What the four renderers share: random numbers, placing a batch of glyphs, colouring it.

Glyphs and pictures are float32 in [0, 1]: masks (N, 1, H, W) with 1 where there is ink, pictures (N, 3, 32, 32).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedml_dapper.datasets.image_set import ImageSet

TRAIN_PER_CLASS = 67
TEST_PER_CLASS = 20
SIZE = 32


def generator(seed: int) -> torch.Generator:
    """A stream of its own for one split of one domain; the experiment's seed plays no part."""
    return torch.Generator().manual_seed(seed)


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """float32 of ``shape``, uniform in [``low``, ``high``)."""
    return low + (high - low) * torch.rand(shape, generator=rng)


def balanced_labels(per_class: int) -> Tensor:
    """int64 (10 * ``per_class``,): every digit equally often, in order."""
    return torch.arange(10).repeat_interleave(per_class)


def place(
    masks: Tensor, scale: Tensor, shift: Tensor, rotation: Tensor | None = None, slant: Tensor | None = None
) -> Tensor:
    """Masks (N, 1, H, W) drawn onto (N, 1, 32, 32).

    ``scale`` (N,) is the share of the canvas the mask's own frame fills, ``shift`` (N, 2) right and down in pixels,
    ``rotation`` (N,) in degrees, ``slant`` (N,) sideways shift over height, as in italics.
    """
    count = len(masks)
    angle = torch.deg2rad(torch.zeros(count) if rotation is None else rotation)
    slant = torch.zeros(count) if slant is None else slant
    cos = angle.cos()
    sin = angle.sin()
    one = torch.ones(count)
    zero = torch.zeros(count)
    turn = torch.stack([cos, -sin, sin, cos], 1).view(count, 2, 2)
    lean = torch.stack([one, -slant, zero, one], 1).view(count, 2, 2)
    inverse = torch.linalg.inv(scale.view(count, 1, 1) * turn @ lean)
    offset = -inverse @ (shift / (SIZE / 2)).unsqueeze(2)
    grid = F.affine_grid(torch.cat([inverse, offset], 2), [count, 1, 2 * SIZE, 2 * SIZE], align_corners=False)
    twice_as_large = F.grid_sample(masks, grid, mode="bicubic", align_corners=False)
    return F.avg_pool2d(twice_as_large, 2).clamp(0, 1)


def blur(pictures: Tensor) -> Tensor:
    """``pictures`` (N, C, H, W), each pixel averaged with its neighbourhood, twice."""
    for _ in range(2):
        pictures = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return pictures


def clouds(count: int, cells: int, rng: torch.Generator) -> Tensor:
    """Smooth noise (N, 3, 32, 32) in [-1, 1] that varies over ``cells`` patches a side."""
    coarse = uniform(-1, 1, (count, 3, cells, cells), rng)
    return F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False).clamp(-1, 1)


def paint(ground: Tensor, ink: Tensor, mask: Tensor) -> Tensor:
    """``ink`` over ``ground`` where ``mask`` is; all broadcast to (N, 3, 32, 32)."""
    return ground + (ink - ground) * mask


def image_set(pictures: Tensor, labels: Tensor) -> ImageSet:
    """Pictures as uint8 with their labels."""
    return ImageSet(pictures.clamp(0, 1).mul(255).round().to(torch.uint8), labels)
