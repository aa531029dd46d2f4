"""Cost of the capability levels, relative to a reference model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.evaluation.units import scale_of, share
from fedml_dapper.federation import LevelFootprint


@dataclass(frozen=True)
class CostReference:
    """The footprint that counts as 100 %, and what to call its model: dense or largest."""

    footprint: LevelFootprint
    name: str


def cost_reference(footprints: Sequence[LevelFootprint]) -> CostReference:
    """Return the dense model if a level carries it, else the largest level."""
    largest = max(footprints, key=lambda footprint: footprint.params)
    return CostReference(largest, "dense" if any(footprint.ratio == 0 for footprint in footprints) else "largest")


def cost_headings(reference: CostReference) -> tuple[str, ...]:
    """Return the headings of the columns that :func:`cost_cells` fills."""
    of = reference.footprint
    (_, params), (_, macs), (_, up), (_, down) = (
        scale_of(value, "M") for value in (of.params, of.macs, of.bytes_up, of.bytes_down)
    )
    number = f"params ({params})" if params else "params"
    return ("level", "ratio", number, f"of {reference.name}", f"{macs}MACs", f"up ({up}B)", f"down ({down}B)")


def cost_cells(footprint: LevelFootprint, reference: CostReference) -> tuple[str, ...]:
    """Return what a level's model costs, as texts; MACs are for one sample's forward pass, prefixes powers of 1000."""
    of = reference.footprint
    return (
        str(footprint.level),
        f"{footprint.ratio:g}",
        _scaled(footprint.params, of.params, digits=3),
        share(footprint.params, of.params, digits=2),
        _scaled(footprint.macs, of.macs),
        _scaled(footprint.bytes_up, of.bytes_up),
        _scaled(footprint.bytes_down, of.bytes_down),
    )


def _scaled(value: int, largest: int, digits: int = 2) -> str:
    scale, prefix = scale_of(largest, "M")
    return f"{value / scale:.{digits if prefix else 0}f}"
