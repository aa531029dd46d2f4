"""Refill and average by kept index, on a layer of six channels; the package computes every number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.pruning import (
    Axis,
    ChannelGroup,
    ChannelLayout,
    PruningPlan,
    RecoveringMean,
    Recovery,
    TensorSpec,
    write_back,
)

_CHANNELS = 6
_NAME = "layer.weight"
_LAYOUT = ChannelLayout(
    groups={"layer": ChannelGroup("layer", _CHANNELS, (_NAME,))},
    tensors={_NAME: TensorSpec((_CHANNELS,), torch.float32, True, 1, (Axis(0, "layer"),))},
)
_PREVIOUS = torch.tensor([4.0, 8.0, 4.0, 0.0, 8.0, 4.0])
_SHOWN = 2
"""The channel whose mean is written out."""


@dataclass(frozen=True)
class _Client:
    name: str
    samples: int
    kept: tuple[int, ...]
    sent: tuple[float, ...]
    colour: Colour

    @property
    def plan(self) -> PruningPlan:
        return PruningPlan({"layer": torch.tensor(self.kept)})

    @property
    def weights(self) -> dict[str, Tensor]:
        return {_NAME: torch.tensor(self.sent)}

    def refilled(self) -> Tensor:
        return write_back({_NAME: _PREVIOUS}, self.weights, _LAYOUT, self.plan)[_NAME]


_CLIENTS = (
    _Client("Client A", 10, (0, 1, 2, 3, 4, 5), (8.0, 4.0, 4.0, 4.0, 8.0, 0.0), "orange"),
    _Client("Client B", 10, (0, 2, 5), (4.0, 8.0, 6.0), "green"),
    _Client("Client C", 20, (0, 1, 4), (0.0, 7.0, 2.0), "purple"),
)


def mean(recovery: Recovery) -> Tensor:
    """The layer after the round: shape (channels,)."""
    running = RecoveringMean({_NAME: _PREVIOUS}, _LAYOUT, recovery)
    for client in _CLIENTS:
        running.add(client.weights, client.plan, client.samples)
    return running.result()[_NAME]


def picture() -> Picture:
    drawn = Picture(
        "Refill and average by kept index",
        "A layer has six channels. Client A sends all of them, clients B and C send three each, with the indices of"
        " the channels that they kept. Each upload is put back at its indices, and the previous global model fills the"
        " rest. The mean over clients, weighted by samples, is the next global model. Averaged over holders, only those"
        " count that kept a channel.",
        height=470,
    )
    drawn.text(210, 30, "sent: kept channels alone", size=15, bold=True)
    drawn.text(498, 30, "put back by index, W fills the rest", size=15, bold=True)
    drawn.text(488, 54, "channel", size=12, anchor="end", colour="soft")
    for channel in range(_CHANNELS):
        drawn.text(_whole(channel) + 30, 54, str(channel), size=12, anchor="middle", colour="soft")
    drawn.text(16, 90, "W", size=15, colour="blue", bold=True)
    drawn.text(38, 90, "previous global model", size=13)
    for channel, value in enumerate(_PREVIOUS.tolist()):
        _cell(drawn, _whole(channel), 66, 60, value, "blue")
    for row, client in enumerate(_CLIENTS):
        _upload(drawn, 120 + row * 74, client)
    drawn.line((16, 336), (884, 336))
    weights = [client.samples for client in _CLIENTS]
    values = [client.refilled()[_SHOWN].item() for client in _CLIENTS]
    kept = [_SHOWN in client.kept for client in _CLIENTS]
    by_samples = _written_out(weights, values, [True] * len(kept), mean("global"))
    by_holders = _written_out(weights, values, kept, mean("holders"))
    _result(drawn, 350, "global: Eq. 6-7", "mean of the rows above", by_samples, mean("global"))
    _result(drawn, 410, "holders", "mean of those that kept it", by_holders, mean("holders"))
    return drawn


def _upload(drawn: Picture, top: int, client: _Client) -> None:
    drawn.text(16, top + 18, client.name, size=15, colour=client.colour, bold=True)
    drawn.text(16, top + 40, f"{client.samples} samples", size=13)
    for place, (channel, value) in enumerate(zip(client.kept, client.sent, strict=True)):
        _cell(drawn, 210 + place * 38, top, 36, value, client.colour)
        drawn.text(228 + place * 38, top + 54, str(channel), size=12, anchor="middle", colour="soft")
    drawn.arrow((210 + len(client.kept) * 38 + 8, top + 18), (488, top + 18), colour=client.colour)
    for channel, value in enumerate(client.refilled().tolist()):
        if channel in client.kept:
            _cell(drawn, _whole(channel), top, 60, value, client.colour)
        else:
            drawn.box(_whole(channel), top, 60, 36, colour="blue", fill="dash")
            drawn.text(_whole(channel) + 30, top + 23, f"{value:g}", anchor="middle", colour="blue")


def _result(drawn: Picture, top: int, name: str, meaning: str, written_out: str, values: Tensor) -> None:
    drawn.text(16, top + 18, name, size=15, bold=True)
    drawn.text(16, top + 38, meaning, size=13)
    drawn.text(210, top + 18, f"channel {_SHOWN}:", size=12, colour="soft")
    drawn.text(210, top + 38, written_out, size=13)
    for channel, value in enumerate(values.tolist()):
        _cell(drawn, _whole(channel), top + 4, 60, value, "ink")


def _written_out(weights: list[int], values: list[float], counted: list[bool], result: Tensor) -> str:
    terms = [(weight, value) for weight, value, counts in zip(weights, values, counted, strict=True) if counts]
    together = " + ".join(f"{weight}×{value:g}" for weight, value in terms)
    return f"({together}) / {sum(weight for weight, _ in terms)} = {result[_SHOWN].item():g}"


def _cell(drawn: Picture, left: float, top: float, width: float, value: float, colour: Colour) -> None:
    drawn.box(left, top, width, 36, colour=colour)
    drawn.text(left + width / 2, top + 23, f"{value:g}", anchor="middle")


def _whole(channel: int) -> int:
    return 498 + channel * 65
