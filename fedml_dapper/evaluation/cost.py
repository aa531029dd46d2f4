"""Which model the cost of the capability levels is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.federation import LevelFootprint


@dataclass(frozen=True)
class CostReference:
    """The footprint that is 100 %, and what to call its model: dense or largest."""

    footprint: LevelFootprint
    name: str


def cost_reference(footprints: Sequence[LevelFootprint]) -> CostReference:
    """The dense model when a level carries it, else the largest level there is."""
    largest = max(footprints, key=lambda footprint: footprint.params)
    return CostReference(largest, "dense" if any(footprint.ratio == 0 for footprint in footprints) else "largest")
