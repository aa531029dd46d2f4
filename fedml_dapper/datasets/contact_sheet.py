"""A contact sheet: a few training images of every domain and class of a suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from fedml_dapper.datasets.domain import Domain, Suite

_MAX_CLASSES = 20
_TILE = 56
_GAP = 2
_MOST_CELLS = 40
"""Most cells of domain and class with several images each; with more cells, each has one image."""


@dataclass(frozen=True)
class ContactSheet:
    """Pictures by domain and class."""

    classes: tuple[str, ...]
    rows: Mapping[str, tuple[Image.Image | None, ...]]
    """Domain -> for each class some images, one below the other; None where it has none."""


def contact_sheet(suite: Suite, per_class: int = 3) -> ContactSheet | None:
    """Return the first ``per_class`` training images of the first 20 classes of every domain, as RGB pictures.

    Suites with many domains and classes get one image of each. The result is None where the data are no pictures, or
    have no classes.
    """
    train = suite.domains[0].train
    if train.labels is None or train.pictures(torch.tensor([0])) is None:
        return None
    classes = suite.classes[:_MAX_CLASSES]
    count = per_class if len(classes) * len(suite.domains) <= _MOST_CELLS else 1
    return ContactSheet(
        classes, {d.name: tuple(_examples(d, label, count) for label in range(len(classes))) for d in suite.domains}
    )


def _examples(domain: Domain, label: int, count: int) -> Image.Image | None:
    if domain.train.labels is None:
        return None
    pictures = domain.train.pictures(torch.nonzero(domain.train.labels == label).flatten()[:count])
    if pictures is None or not len(pictures):
        return None
    pixels = pictures.permute(0, 2, 3, 1).cpu().numpy()
    column = Image.new("RGB", (_TILE, len(pixels) * (_TILE + _GAP) - _GAP), "grey")
    for place, image in enumerate(pixels):
        column.paste(Image.fromarray(np.ascontiguousarray(image)).resize((_TILE, _TILE)), (0, place * (_TILE + _GAP)))
    return column
