"""Appearance of a bench's variants, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.colors import to_hex

from fedml_dapper.benches.results import BenchResults, VariantResults
from fedml_dapper.evaluation.style import MARKERS, PALETTE

_STYLES = ("-", "--", ":")


@dataclass(frozen=True)
class Look:
    """Appearance of a line and its markers."""

    colour: str
    marker: str
    style: str
    width: float
    above: int
    """Drawing order; the reference lies on top."""


def line_name(variant: VariantResults) -> str:
    """Return the name of a variant's line: in a sweep its series, else its label."""
    return variant.variant.series or variant.label


def looks(results: BenchResults) -> dict[str, Look]:
    """Return the look of each line. The reference is black and thick; colours repeat with another stroke."""
    leading = line_name(results.reference)
    others = [name for name in dict.fromkeys(map(line_name, results.variants)) if name != leading]
    found = {leading: Look("#000000", "o", "-", 2.6, 3)}
    for place, name in enumerate(others):
        style = _STYLES[place // len(PALETTE) % len(_STYLES)]
        marker = MARKERS[(place + 1) % len(MARKERS)]
        found[name] = Look(PALETTE[place % len(PALETTE)], marker, style, 1.4, 2)
    return found


def ordered_looks(count: int) -> Sequence[Look]:
    """Return looks for lines with an order of their own, dark to light."""
    viridis = colormaps["viridis"]
    colours = [to_hex(viridis(0.88 * place / max(count - 1, 1))) for place in range(count)]
    return [Look(colour, MARKERS[place % len(MARKERS)], "-", 1.6, 2) for place, colour in enumerate(colours)]
