"""Cost of a client model: parameters, multiply-accumulates and bytes each way, counted on integer shapes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, prod

from fedml_dapper.config import Uplink
from fedml_dapper.pruning.layout import ChannelLayout, Widths
from fedml_dapper.pruning.uplink import travelling_bytes


@dataclass(frozen=True)
class Footprint:
    """Cost of one client model."""

    parameters: int
    """Parameters, frozen ones too."""
    macs: int
    """Multiply-accumulates of one example's forward pass (papers print them as FLOPs), 2 per output of a norm."""
    bytes_up: int
    """Bytes that the client sends in a round: its state dict, and one bit per prunable channel."""
    bytes_down: int
    """Bytes that the client receives in a round."""


def footprint(
    layout: ChannelLayout,
    widths: Widths,
    *,
    unsliced: Collection[str] = (),
    skipped: Collection[str] = (),
    personal: Collection[str] = (),
    slim_downlink: bool = False,
) -> Footprint:
    """Return the cost of the model in which each group keeps its width.

    Args:
        unsliced: Tensors that are uploaded whole all the same.
        skipped: Tensors that the client's model lacks.
        personal: Tensors that the client trains, but neither sends nor receives.
        slim_downlink: Whether the client receives the slim model rather than the dense one.
    """
    unsent = {*skipped, *personal}
    bitmap = bitmap_bytes(layout, widths)
    return Footprint(
        parameters=count_parameters(layout, widths, skipped),
        macs=count_macs(layout, widths, skipped),
        bytes_up=count_bytes(layout, widths, unsliced, unsent, layout.uplink) + bitmap,
        bytes_down=count_bytes(layout, widths, unsliced, unsent, layout.downlink) + bitmap
        if slim_downlink
        else count_bytes(layout, {}, (), personal, layout.downlink),
    )


def count_parameters(layout: ChannelLayout, widths: Widths, skipped: Collection[str] = ()) -> int:
    """Count the parameters of a model, frozen ones too, without the tensors named in ``skipped``."""
    present = (spec for name, spec in layout.tensors.items() if name not in skipped)
    return sum(prod(spec.shape_at(widths)) for spec in present if spec.trainable)


def count_macs(layout: ChannelLayout, widths: Widths, skipped: Collection[str] = ()) -> int:
    """Count the multiply-accumulates of one example's forward pass, without the tensors named in ``skipped``."""
    present = (spec for name, spec in (*layout.tensors.items(), *layout.products.items()) if name not in skipped)
    return int(sum(prod(spec.shape_at(widths)) * spec.macs_per_element for spec in present))


def count_bytes(
    layout: ChannelLayout,
    widths: Widths,
    unsliced: Collection[str] = (),
    skipped: Collection[str] = (),
    kind: Uplink = "fp32",
) -> int:
    """Count the bytes of what travels of the state dict, buffers included, without the tensors named in ``skipped``."""
    return sum(
        travelling_bytes(spec.shape if name in unsliced else spec.shape_at(widths), spec, kind)
        for name, spec in layout.tensors.items()
        if name not in skipped and not spec.frozen
    )


def bitmap_bytes(layout: ChannelLayout, widths: Widths) -> int:
    """Count the bytes that say which channels were kept: one bit per channel of every cut group."""
    return sum(ceil(layout.groups[name].channels / 8) for name in widths)
