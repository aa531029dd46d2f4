"""Uploads that count in a later round than the one they were made in (FedBuff; Nguyen et al., AISTATS 2022).

A client that is late trained from a global model that has moved on since. So what its training changed is kept, and
added to the global model of the round in which it arrives. Slim uploads are cut out of both models by the channels
that they hold. Deviation: FedBuff starts a new client as soon as one is done, here that waits for the round's end.
FedBuff has no word for statistics: those of BatchNorm are measured, not changed, and the late ones are mixed in. Their
differences, added to statistics of another round, would make negative variances.

On the virtual clock an upload is there when its round closes, and waits. On real clocks its client is still at work,
and what waits is the state of the server that it began with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedml_dapper.methods import ServerState, Upload
from fedml_dapper.pruning import ChannelLayout, Tensors, slim_tensors


@dataclass(frozen=True)
class LateUpload:
    """An upload under way."""

    change: Upload
    """As it was made, but that parameters and counters are what training changed."""
    bytes_down: int
    """Of the download that it began with."""


@dataclass(frozen=True)
class AtWork:
    """A client that is still training when its round closes."""

    server: ServerState
    """As it was when the client's round opened."""
    bytes_down: int
    """Of the download that it began with."""

    @property
    def begun(self) -> int:
        """The round that the client began in."""
        return self.server.round + 1


def late_upload(upload: Upload, weights: Tensors, layout: ChannelLayout, bytes_down: int) -> LateUpload:
    """``upload`` of the open round, whose clients start from the global ``weights``."""
    before = _cut(upload, weights, layout)
    change = {
        name: tensor if _is_statistic(name, tensor, layout) else tensor - before[name]
        for name, tensor in upload.weights.items()
    }
    return LateUpload(replace(upload, weights=change), bytes_down)


def arriving(late: LateUpload, round_: int, weights: Tensors, layout: ChannelLayout) -> Upload:
    """An upload as it counts in ``round_``, whose clients start from the global ``weights``: its change times
    (1 + rounds passed)^-1/2, and this share of its statistics, the rest being those of ``weights``. Counters, which are
    whole numbers, change as they did."""
    change = late.change
    share = (1 + round_ - late.change.round) ** -0.5
    now = _cut(change, weights, layout)

    def moved(name: str, tensor: Tensor) -> Tensor:
        if _is_statistic(name, tensor, layout):
            return now[name].lerp(tensor, share)
        return now[name] + (share * tensor if tensor.is_floating_point() else tensor)

    return replace(change, round=round_, weights={name: moved(name, tensor) for name, tensor in change.weights.items()})


def _is_statistic(name: str, tensor: Tensor, layout: ChannelLayout) -> bool:
    """Whether a tensor is measured, as BatchNorm's mean and variance, rather than learnt or counted."""
    return tensor.is_floating_point() and not layout.tensors[name].trainable


def _cut(upload: Upload, weights: Tensors, layout: ChannelLayout) -> Tensors:
    """The global model, as ``upload`` is cut, on its device."""
    named = {name: weights[name].to(tensor.device) for name, tensor in upload.weights.items()}
    return slim_tensors(named, layout, upload.plan, upload.unsliced)
