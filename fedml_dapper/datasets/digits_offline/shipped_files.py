"""Files that scikit-learn and matplotlib ship, found without importing these packages, which takes a second."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fedml_dapper.errors import DataError

DIGITS = "datasets/data/digits.csv.gz"
"""scikit-learn's 1797 scans: a line has 64 pixels of 0 to 16, row by row, and the digit."""
PHOTOGRAPHS = ("datasets/images/china.jpg", "datasets/images/flower.jpg")
"""scikit-learn's sample photographs."""
FONTS = "mpl-data/fonts/ttf"
"""matplotlib's folder of typefaces."""


def shipped(package: str, name: str) -> Path:
    """Return the file or folder ``name`` of an installed ``package``.

    Raises:
        DataError: It does not exist.
    """
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        if (path := Path(folder, name)).exists():
            return path
    raise DataError(
        f"digits_offline is drawn from {name} of {package}, which is not there; run/setup.sh installs what has it"
    )
