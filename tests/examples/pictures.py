"""Pictures made on the spot: six shapes in three styles."""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw

CLASSES = ("bar", "circle", "cross", "diamond", "square", "triangle")
STYLES = {"chalk": ("black", "white", 2), "ink": ("white", "navy", 3), "paint": ("orange", "green", 0)}


def draw(shape: str, style: str, seed: int) -> Image.Image:
    """A picture of 40 x 36 pixels or a bit more, outlined or filled."""
    rng = random.Random(f"{shape} {style} {seed}")
    ground, colour, stroke = STYLES[style]
    picture = Image.new("RGB", (40 + rng.randrange(8), 36 + rng.randrange(8)), ground)
    x, y, r = 20 + rng.randrange(-4, 5), 18 + rng.randrange(-3, 4), 9 + rng.randrange(4)
    look = {"outline": colour, "width": stroke} if stroke else {"fill": colour}
    pen = ImageDraw.Draw(picture)
    match shape:
        case "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), **look)
        case "square":
            pen.rectangle((x - r, y - r, x + r, y + r), **look)
        case "bar":
            pen.rectangle((x - r, y - 2, x + r, y + 2), **look)
        case "triangle":
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], **look)
        case "diamond":
            pen.polygon([(x, y - r), (x - r, y), (x, y + r), (x + r, y)], **look)
        case "cross":
            pen.line((x - r, y - r, x + r, y + r), colour, stroke or 5)
            pen.line((x - r, y + r, x + r, y - r), colour, stroke or 5)
    return picture


def make_style(folder: Path, style: str, per_class: int = 16) -> None:
    """``<folder>/<class>/*`` in one style."""
    for shape in CLASSES:
        (folder / shape).mkdir(parents=True)
        for number in range(per_class):
            draw(shape, style, number).save(folder / shape / f"{number:02}.{'jpg' if style == 'paint' else 'png'}")


def make_pictures(root: Path, per_class: int = 16) -> None:
    """``<root>/<style>/<class>/*`` in all styles."""
    for style in STYLES:
        make_style(root / style, style, per_class)
