"""What a client model costs: parameters, multiply-accumulates and bytes each way, counted on real integer shapes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, prod

from fedml_dapper.config import Uplink
from fedml_dapper.pruning.layout import ChannelLayout, Widths
from fedml_dapper.pruning.uplink import travelling_bytes


@dataclass(frozen=True)
class Footprint:
    """Cost of one client model.

    ``macs`` are multiply-accumulates of one example's forward pass (the papers print them as FLOPs), counting 2 per
    output of a norm. ``bytes_up`` is what the client sends: its state dict and one bit per prunable channel;
    ``bytes_down`` what it receives.
    """

    parameters: int
    macs: int
    bytes_up: int
    bytes_down: int


def footprint(
    layout: ChannelLayout,
    widths: Widths,
    *,
    unsliced: Collection[str] = (),
    skipped: Collection[str] = (),
    personal: Collection[str] = (),
    slim_downlink: bool = False,
) -> Footprint:
    """Footprint of the model in which each group keeps its width, trained from a dense or a slim download.

    ``unsliced`` names tensors that are uploaded whole all the same, ``skipped`` those the client's model lacks,
    ``personal`` those it trains but neither sends nor receives.
    """
    unsent = {*skipped, *personal}
    bitmap = bitmap_bytes(layout, widths)
    return Footprint(
        parameters=count_parameters(layout, widths, skipped),
        macs=count_macs(layout, widths, skipped),
        bytes_up=count_bytes(layout, widths, unsliced, unsent, layout.uplink) + bitmap,
        bytes_down=count_bytes(layout, widths, unsliced, unsent) + bitmap
        if slim_downlink
        else count_bytes(layout, {}, (), personal),
    )


def count_parameters(layout: ChannelLayout, widths: Widths, skipped: Collection[str] = ()) -> int:
    """Trainable parameters of a model without the tensors named in ``skipped``."""
    present = (spec for name, spec in layout.tensors.items() if name not in skipped)
    return sum(prod(spec.shape_at(widths)) for spec in present if spec.trainable)


def count_macs(layout: ChannelLayout, widths: Widths, skipped: Collection[str] = ()) -> int:
    """Multiply-accumulates of one example's forward pass, without the tensors named in ``skipped``."""
    present = (spec for name, spec in (*layout.tensors.items(), *layout.products.items()) if name not in skipped)
    return int(sum(prod(spec.shape_at(widths)) * spec.macs_per_element for spec in present))


def count_bytes(
    layout: ChannelLayout, widths: Widths, unsliced: Collection[str] = (), skipped: Collection[str] = (),
    uplink: Uplink = "fp32",
) -> int:  # fmt: skip
    """Bytes of the state dict, buffers included, without the tensors named in ``skipped``."""
    return sum(
        travelling_bytes(spec.shape if name in unsliced else spec.shape_at(widths), spec, uplink)
        for name, spec in layout.tensors.items()
        if name not in skipped
    )


def bitmap_bytes(layout: ChannelLayout, widths: Widths) -> int:
    """Bytes that say which channels were kept: one bit per channel of every cut group."""
    return sum(ceil(layout.groups[name].channels / 8) for name in widths)
