"""The domain ``segments``: seven-segment displays, glowing or liquid crystal, slanted, with glare and a little blur."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from fedml_dapper.datasets.digits_offline.canvas import (
    SIZE,
    TEST_PER_CLASS,
    TRAIN_PER_CLASS,
    balanced_labels,
    blur,
    generator,
    image_set,
    paint,
    place,
    uniform,
)
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.sources import Splits

LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""The lit segments of each digit: a on top, then clockwise to f, g in the middle."""

_FRAME = 96
_LEFT = 28
_RIGHT = 68
_TOP = 12
_MIDDLE = 48
_BOTTOM = 84
_ENDS = {
    "a": (_LEFT, _TOP, _RIGHT, _TOP),
    "b": (_RIGHT, _TOP, _RIGHT, _MIDDLE),
    "c": (_RIGHT, _MIDDLE, _RIGHT, _BOTTOM),
    "d": (_LEFT, _BOTTOM, _RIGHT, _BOTTOM),
    "e": (_LEFT, _MIDDLE, _LEFT, _BOTTOM),
    "f": (_LEFT, _TOP, _LEFT, _MIDDLE),
    "g": (_LEFT, _MIDDLE, _RIGHT, _MIDDLE),
}
_HALF_WIDTHS = (3.5, 5.0, 6.5)


def render() -> Splits:
    """Draw the domain; training and test differ in every random draw."""
    train = _render(balanced_labels(TRAIN_PER_CLASS), generator(7))
    return Splits(train, _render(balanced_labels(TEST_PER_CLASS), generator(8)))


def _render(labels: Tensor, rng: torch.Generator) -> ImageSet:
    count = len(labels)
    lit, ghost = _display_masks(labels, rng)
    crystal = torch.rand((count, 1, 1, 1), generator=rng) < 0.3
    glowing = _glowing(lit, ghost, rng)
    liquid = _liquid_crystal(lit, ghost, rng)
    pictures = torch.where(crystal, liquid, glowing)
    pictures = paint(pictures, blur(pictures), uniform(0, 0.8, (count, 1, 1, 1), rng))
    return image_set(pictures + _glare(count, rng), labels)


def _display_masks(labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Masks (N, 1, 32, 32) of the lit segments and of all seven."""
    count = len(labels)
    shapes = torch.stack([torch.stack([_segments(lit, half) for lit in LIT]) for half in _HALF_WIDTHS])
    width = torch.randint(len(_HALF_WIDTHS), (count,), generator=rng)
    scale = uniform(0.85, 1.15, (count,), rng)
    shift = uniform(-2.5, 2.5, (count, 2), rng)
    slant = uniform(0, 0.3, (count,), rng)
    lit, ghost = (
        place(shapes[width, digits].unsqueeze(1), scale, shift, slant=slant)
        for digits in (labels, torch.full_like(labels, 8))
    )
    return lit, ghost


def _segments(names: str, half_width: float) -> Tensor:
    """Mask (96, 96) of the named segments: bars with pointed ends and a small gap between them."""
    frame = Image.new("L", (_FRAME, _FRAME))
    draw = ImageDraw.Draw(frame)
    for name in names:
        x0, y0, x1, y1 = _ENDS[name]
        along = np.array([np.sign(x1 - x0), np.sign(y1 - y0)], dtype=np.float64)
        across = along[::-1] * half_width
        start = np.array([x0, y0]) + 1.5 * along
        end = np.array([x1, y1]) - 1.5 * along
        inner_start = start + half_width * along
        inner_end = end - half_width * along
        corners = [start, inner_start + across, inner_end + across, end, inner_end - across, inner_start - across]
        draw.polygon([(float(x), float(y)) for x, y in corners], fill=255)
    return torch.from_numpy(np.array(frame)).float() / 255


def _glowing(lit: Tensor, ghost: Tensor, rng: torch.Generator) -> Tensor:
    count = len(lit)
    colour = uniform(0, 1, (count, 3, 1, 1), rng)
    colour = 0.25 + 0.75 * colour / colour.amax(dim=1, keepdim=True)
    ground = uniform(0.02, 0.12, (count, 3, 1, 1), rng)
    return paint(ground, colour, 0.12 * ghost) + colour * (lit + 0.4 * blur(blur(lit)))


def _liquid_crystal(lit: Tensor, ghost: Tensor, rng: torch.Generator) -> Tensor:
    count = len(lit)
    tint = torch.tensor([0.0, 0.06, -0.06]).view(3, 1, 1) * uniform(0, 1, (count, 1, 1, 1), rng)
    ground = uniform(0.5, 0.7, (count, 1, 1, 1), rng) + tint
    ink = uniform(0.05, 0.2, (count, 1, 1, 1), rng)
    return paint(ground, ink, torch.maximum(lit, 0.08 * ghost))


def _glare(count: int, rng: torch.Generator) -> Tensor:
    """A soft bright band (N, 1, 32, 32) across each picture, of random direction, place and strength."""
    axis = torch.linspace(-1, 1, SIZE)
    angle = uniform(0, torch.pi, (count, 1, 1, 1), rng)
    distance = angle.cos() * axis.view(1, SIZE) + angle.sin() * axis.view(SIZE, 1)
    distance = distance - uniform(-1, 1, (count, 1, 1, 1), rng)
    return uniform(0, 0.3, (count, 1, 1, 1), rng) * torch.exp(-((distance / 0.35) ** 2))
