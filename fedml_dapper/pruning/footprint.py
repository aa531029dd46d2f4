"""What a client model costs: parameters, multiply-accumulates and bytes each way, counted on real integer shapes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, prod

from fedml_dapper.pruning.layout import ChannelLayout, Widths


@dataclass(frozen=True)
class Footprint:
    """Cost of one client model.

    ``macs`` are multiply-accumulates of one image's forward pass (the papers print them as FLOPs), counting 2 per
    BatchNorm output. ``bytes_up`` is what the client sends: its state dict and one bit per prunable channel;
    ``bytes_down`` what it receives.
    """

    parameters: int
    macs: int
    bytes_up: int
    bytes_down: int


def footprint(layout: ChannelLayout, widths: Widths, unsliced: Collection[str] = ()) -> Footprint:
    """Footprint of the model in which each group keeps its width, trained from a dense download.

    ``unsliced`` names tensors that are uploaded whole all the same.
    """
    return Footprint(
        parameters=count_parameters(layout, widths),
        macs=count_macs(layout, widths),
        bytes_up=count_bytes(layout, widths, unsliced) + bitmap_bytes(layout, widths),
        bytes_down=count_bytes(layout, {}),
    )


def count_parameters(layout: ChannelLayout, widths: Widths) -> int:
    """Trainable parameters."""
    return sum(prod(spec.shape_at(widths)) for spec in layout.tensors.values() if spec.trainable)


def count_macs(layout: ChannelLayout, widths: Widths) -> int:
    """Multiply-accumulates of one image's forward pass."""
    return sum(prod(spec.shape_at(widths)) * spec.macs_per_element for spec in layout.tensors.values())


def count_bytes(layout: ChannelLayout, widths: Widths, unsliced: Collection[str] = ()) -> int:
    """Bytes of the state dict, buffers included."""
    return sum(
        prod(spec.shape if name in unsliced else spec.shape_at(widths)) * spec.dtype.itemsize
        for name, spec in layout.tensors.items()
    )


def bitmap_bytes(layout: ChannelLayout, widths: Widths) -> int:
    """Bytes that say which channels were kept: one bit per channel of every cut group."""
    return sum(ceil(layout.groups[name].channels / 8) for name in widths)
