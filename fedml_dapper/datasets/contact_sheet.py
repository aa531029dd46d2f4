"""A picture of a suite: domains down, classes across, a few training images of each."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from fedml_dapper.datasets.domain import Domain, Suite

_MAX_CLASSES = 20
_TILE = 56
_GAP = 2
_BLOCK_GAP = 12
_LEFT = 96
_TOP = 32


def contact_sheet(suite: Suite, per_class: int = 3) -> Image.Image | None:
    """The first ``per_class`` training images of the first 20 classes of every domain, labelled, as an RGB picture.

    None where the data are no pictures, or have no classes.
    """
    train = suite.domains[0].train
    if train.labels is None or train.pictures(torch.tensor([0])) is None:
        return None
    classes = suite.classes[:_MAX_CLASSES]
    block = per_class * (_TILE + _GAP) + _BLOCK_GAP
    width = _LEFT + len(classes) * (_TILE + _GAP)
    sheet = Image.new("RGB", (width, _TOP + len(suite.domains) * block), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=10)
    for label, name in enumerate(classes):
        centre = (_LEFT + label * (_TILE + _GAP) + _TILE // 2, _TOP // 2)
        draw.text(centre, name.replace("_", "\n"), "black", font, anchor="mm", align="center")
    for row, domain in enumerate(suite.domains):
        top = _TOP + row * block
        draw.text((_LEFT - 8, top + (block - _BLOCK_GAP) // 2), domain.name, "black", font, anchor="rm")
        for label in range(len(classes)):
            for place, tile in enumerate(_examples(domain, label, per_class)):
                sheet.paste(tile, (_LEFT + label * (_TILE + _GAP), top + place * (_TILE + _GAP)))
    return sheet


def _examples(domain: Domain, label: int, count: int) -> list[Image.Image]:
    if domain.train.labels is None:
        return []
    pictures = domain.train.pictures(torch.nonzero(domain.train.labels == label).flatten()[:count])
    if pictures is None:
        return []
    pixels = pictures.permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(np.ascontiguousarray(image)).resize((_TILE, _TILE)) for image in pixels]
