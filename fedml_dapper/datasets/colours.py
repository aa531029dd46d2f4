"""Conversion of pictures of any mode to RGB with 8 bits per channel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


def to_rgb(picture: Image.Image) -> Image.Image:
    """Return ``picture`` in RGB, rotated as its EXIF data say.

    Transparent areas become white. 16-bit values are scaled to 8 bits, and floats from their own range.
    """
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I") or upright.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(upright, np.float64), upright.mode == "F")).convert("RGB")
    if "A" in upright.getbands() or "transparency" in upright.info:
        rgba = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return upright.convert("RGB")


def _eight_bits(values: NDArray[np.float64], by_range: bool) -> NDArray[np.uint8]:
    low, high = (float(values.min()), float(values.max())) if by_range else (0.0, 65535.0)
    scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    eight: NDArray[np.uint8] = np.rint(scaled * 255).astype(np.uint8)
    return eight
