"""The domain ``fonts``: digits in the typefaces that matplotlib ships, turned and shifted, on noisy coloured ground."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
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
from fedml_dapper.datasets.digits_offline.shipped_files import FONTS, shipped
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.sources import Splits

TRAIN_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBolIta",
    "cmr10",
    "cmss10",
)
TEST_FONTS = ("DejaVuSansMono-Bold", "DejaVuSerif-Italic", "STIXGeneralBol", "STIXGeneralItalic", "cmtt10")

_FRAME = 96
_DIGIT_HEIGHT = 72


def render() -> Splits:
    """Draw the domain; no typeface occurs both in training and in test."""
    train = _render(TRAIN_FONTS, balanced_labels(TRAIN_PER_CLASS), generator(5))
    return Splits(train, _render(TEST_FONTS, balanced_labels(TEST_PER_CLASS), generator(6)))


def _render(fonts: tuple[str, ...], labels: Tensor, rng: torch.Generator) -> ImageSet:
    count = len(labels)
    glyphs = torch.stack([_glyphs(font) for font in fonts])
    mask = place(
        glyphs[torch.randint(len(fonts), (count,), generator=rng), labels].unsqueeze(1),
        scale=uniform(0.75, 1.15, (count,), rng),
        shift=uniform(-3, 3, (count, 2), rng),
        rotation=uniform(-20, 20, (count,), rng),
    )
    dark = uniform(0, 0.45, (count, 3, 1, 1), rng)
    light = uniform(0.6, 1, (count, 3, 1, 1), rng)
    on_dark = torch.rand((count, 1, 1, 1), generator=rng) < 0.5
    ground = torch.where(on_dark, dark, light)
    ink = torch.where(on_dark, light, dark)
    noise = 0.12 * clouds(count, 4, rng) + uniform(-0.1, 0.1, (count, 3, SIZE, SIZE), rng)
    return image_set(paint(ground + noise, ink, mask), balanced_labels(count // 10))


def _glyphs(font_name: str) -> Tensor:
    """Masks (10, 96, 96) of the digits, centred and equally tall in every typeface."""
    file = shipped("matplotlib", FONTS) / f"{font_name}.ttf"
    _, top, _, bottom = _font(file, 100).getbbox("8")
    font = _font(file, round(100 * _DIGIT_HEIGHT / (bottom - top)))
    return torch.stack([_glyph(str(digit), font) for digit in range(10)])


def _font(file: Path, size: int) -> ImageFont.FreeTypeFont:
    # the basic layout engine is in every build of Pillow
    return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)


def _glyph(digit: str, font: ImageFont.FreeTypeFont) -> Tensor:
    frame = Image.new("L", (_FRAME, _FRAME))
    left, top, right, bottom = font.getbbox(digit)
    corner = ((_FRAME - left - right) / 2, (_FRAME - top - bottom) / 2)
    ImageDraw.Draw(frame).text(corner, digit, 255, font)
    return torch.from_numpy(np.array(frame)).float() / 255
