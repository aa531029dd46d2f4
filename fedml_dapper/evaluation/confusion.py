"""Confusion of classes: which class a model takes for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from fedml_dapper.datasets import TestData
from fedml_dapper.errors import DataError, printable
from fedml_dapper.evaluation.style import SHARES, panel
from fedml_dapper.models import Backbone

Counts = tuple[tuple[int, ...], ...]
"""Numbers of test samples, with a row per true class and a column per predicted class."""

MOST_COUNTED = 1000
"""Most classes whose confusions are counted; the memory for them grows with the square."""
MOST_DRAWN = 20
"""Most classes of a legible picture."""
_WITH_NUMBERS = 12
_LETTERS = 14


@dataclass(frozen=True)
class Mistake:
    """A class that is taken for another."""

    domain: str
    truth: str
    taken_for: str
    count: int
    of: int
    """Samples of the true class."""


@torch.no_grad()
def confusion(model: Backbone, test: TestData, classes: int, device: torch.device) -> Counts:
    """Count how often ``model``, in evaluation mode, predicts each class for samples of each class.

    Raises:
        DataError: There are more than :data:`MOST_COUNTED` classes.
    """
    if classes > MOST_COUNTED:
        raise DataError(f"there are {classes:,} classes, and confusions are counted of {MOST_COUNTED:,} at most")
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    model.to(device).eval()
    for batch in test.batches(device):
        predicted = model(batch.inputs).argmax(dim=1)
        counts += torch.bincount((batch.targets * classes + predicted).cpu(), minlength=classes * classes)
    return tuple(tuple(row) for row in counts.view(classes, classes).tolist())


def mistakes(confusions: Mapping[str, Counts], classes: Sequence[str], most: int) -> list[Mistake]:
    """Return the ``most`` frequent mistakes over all domains, the largest share of a class first."""
    found = [
        Mistake(domain, classes[truth], classes[taken], count, sum(row))
        for domain, counts in confusions.items()
        for truth, row in enumerate(counts)
        for taken, count in enumerate(row)
        if count and taken != truth
    ]
    return sorted(found, key=lambda one: (-one.count / one.of, -one.count, one.domain))[:most]


def confusion_matrix(counts: Counts, classes: Sequence[str]) -> Figure:
    """Draw a row per true class, whose cells show which share of it is predicted as what."""
    table = np.array(counts)
    shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    shown = map(printable, classes)  # an SVG can hold no letters that control a terminal
    names = [name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}" for name in shown]
    figure, axes = panel(4.2)
    axes.pcolormesh(0.7 * shares, cmap=SHARES, vmin=0, vmax=100)  # paler, so that numbers are legible on the darkest
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=90)
    axes.set_yticks(np.arange(len(names)) + 0.5, names)
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(names) <= _WITH_NUMBERS:
        for (truth, taken), value in np.ndenumerate(shares):
            if value >= 0.5:
                axes.text(taken + 0.5, truth + 0.5, f"{value:.0f}", ha="center", va="center")
    return figure
