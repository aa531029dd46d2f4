"""Drawing for the four domains: random numbers, placing a batch of glyphs, colouring it.

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
    """Return the random stream of one split of one domain; the experiment's seed does not matter."""
    return torch.Generator().manual_seed(seed)


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw float32 of ``shape``, uniform in [``low``, ``high``)."""
    return low + (high - low) * torch.rand(shape, generator=rng)


def balanced_labels(per_class: int) -> Tensor:
    """Return every digit equally often, in order: int64 (10 * ``per_class``,)."""
    return torch.arange(10).repeat_interleave(per_class)


def place(
    masks: Tensor, scale: Tensor, shift: Tensor, rotation: Tensor | None = None, slant: Tensor | None = None
) -> Tensor:
    """Draw masks (N, 1, H, W) onto canvases (N, 1, 32, 32).

    Args:
        scale: Share of the canvas that the mask's frame fills, (N,).
        shift: Shift to the right and down in pixels, (N, 2).
        rotation: Degrees, (N,).
        slant: Sideways shift over height, as in italics, (N,).
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
    # drawn at twice the size and averaged, which smooths the edges
    twice_as_large = F.grid_sample(masks, grid, mode="bicubic", align_corners=False)
    return F.avg_pool2d(twice_as_large, 2).clamp(0, 1)


def blur(pictures: Tensor) -> Tensor:
    """Average each pixel of ``pictures`` (N, C, H, W) with its neighbourhood, twice."""
    for _ in range(2):
        pictures = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return pictures


def clouds(count: int, cells: int, rng: torch.Generator) -> Tensor:
    """Draw smooth noise (N, 3, 32, 32) in [-1, 1] that varies over ``cells`` patches a side."""
    coarse = uniform(-1, 1, (count, 3, cells, cells), rng)
    return F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False).clamp(-1, 1)


def paint(ground: Tensor, ink: Tensor, mask: Tensor) -> Tensor:
    """Put ``ink`` over ``ground`` where ``mask`` is 1; all broadcast to (N, 3, 32, 32)."""
    return ground + (ink - ground) * mask


def image_set(pictures: Tensor, labels: Tensor) -> ImageSet:
    """Store pictures as uint8 with their labels."""
    return ImageSet(pictures.clamp(0, 1).mul(255).round().to(torch.uint8), labels)
