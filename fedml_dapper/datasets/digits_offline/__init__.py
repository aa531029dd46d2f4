"""The suite ``digits_offline``: four domains of digits drawn on the spot, the same for every seed.

``scans`` is real handwriting, ``blended`` real handwriting over photographs, ``fonts`` printed type, ``segments``
seven-segment displays. Each has 670 training and 200 test images, 32 x 32 RGB, equally many of every class. Training
and test images share no scan, no part of a photograph and no font. The suite needs no download and is meant for first
steps and tests; it stands for no published benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedml_dapper.datasets.digits_offline import blended, fonts, scans, segments
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import Request, Splits


@dataclass(frozen=True)
class Rendered:
    """Source of a domain that is drawn when it is read."""

    domain: str
    render: Callable[[], Splits]

    @property
    def place(self) -> str:
        return f"built in ({self.domain})"

    def exists(self, root: Path) -> bool:
        """Return True: the domain is drawn, not found."""
        return True

    def read(self, request: Request) -> Splits | None:
        """Draw the images; ``request`` does not matter."""
        return self.render()


def _domain(name: str, render: Callable[[], Splits]) -> DomainRecipe:
    return DomainRecipe(name, (Rendered(name, cache(render)),))  # cached for the process, as nobody changes images


DIGITS_OFFLINE = SuiteRecipe(
    name="digits_offline",
    classes=tuple("0123456789"),
    domains=(
        _domain("scans", scans.render),
        _domain("blended", blended.render),
        _domain("fonts", fonts.render),
        _domain("segments", segments.render),
    ),
    preprocessing=Preprocessing(crop_padding=2, horizontal_flip=False),
    client_share=0.25,
    swap_in_missing_classes=False,
)
