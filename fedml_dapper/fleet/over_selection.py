"""Over-selection: more clients begin a round than it wants uploads of, since some will not be done in time."""

from __future__ import annotations

from math import ceil


def over_selected(wanted: int, factor: float) -> int:
    """Return how many clients begin a round that wants uploads of ``wanted``, ``factor`` times as many, rounded up."""
    return ceil(round(factor * wanted, 9))  # rounded before ceil: in binary, 1.1 * 50 is just above 55
