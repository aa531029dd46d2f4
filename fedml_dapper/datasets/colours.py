"""Conversion of pictures of any mode to RGB with 8 bits per channel."""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


def to_rgb(picture: Image.Image) -> Image.Image:
    """Return ``picture`` in RGB, rotated as its EXIF data say.

    Transparent areas become white. Whole numbers of 16 and of 32 bits are taken as 16 bits, 0 to 65535, and scaled to
    8 bits; floats are scaled from their own range.

    Raises:
        ValueError: A whole number is not of 16 bits, or a float is not finite.
    """
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I") or upright.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(upright, np.float64), upright.mode == "F")).convert("RGB")
    if "A" in upright.getbands() or "transparency" in upright.info:
        rgba = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return upright.convert("RGB")


def _eight_bits(values: NDArray[np.float64], by_range: bool) -> NDArray[np.uint8]:
    least = float(values.min())
    most = float(values.max())
    if not isfinite(most - least):
        raise ValueError("it has values that are not finite")
    low, high = (least, most) if by_range else (0.0, 65535.0)
    if least < low or most > high:
        raise ValueError(f"its values go from {least:.0f} to {most:.0f}, and whole numbers have to be of 16 bits")
    scaled = (values - low) / max(high - low, 1e-12)
    eight: NDArray[np.uint8] = np.rint(scaled * 255).astype(np.uint8)
    return eight
