"""Which model the cost of the capability levels is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.evaluation.units import share
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


def cost_headings(reference: CostReference) -> tuple[str, ...]:
    """Of the columns that :func:`cost_cells` fills."""
    return ("level", "ratio", "params (M)", f"of {reference.name}", "MMACs", "up (MB)", "down (MB)")


def cost_cells(footprint: LevelFootprint, reference: CostReference) -> tuple[str, ...]:
    """What a level's model costs; MACs are for one sample's forward pass, MB are 10^6 bytes."""
    return (
        str(footprint.level),
        f"{footprint.ratio:g}",
        f"{footprint.params / 1e6:.3f}",
        share(footprint.params, reference.footprint.params, digits=2),
        f"{footprint.macs / 1e6:.2f}",
        f"{footprint.bytes_up / 1e6:.2f}",
        f"{footprint.bytes_down / 1e6:.2f}",
    )
