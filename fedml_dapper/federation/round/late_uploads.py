"""Late uploads and their staleness: they count in a later round than their own (FedBuff; Nguyen et al., AISTATS 2022).

A late client trained from a global model that has moved on since. So the change that its training made is kept, and
added to the global model of the round in which it arrives. For slim uploads both models are cut to the channels that
the upload holds.

Deviations: FedBuff starts a new client as soon as one is done; here it waits for the round's end. FedBuff does not
mention BatchNorm's statistics: here late ones are averaged with those of the global model, as their changes, added to
statistics of another round, would make negative variances.

On the virtual clock a late upload exists when its round closes, and is kept (:class:`LateUpload`). On real clocks its
client is still at work, and the server's state from which it began is kept (:class:`AtWork`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedml_dapper.methods import ServerState, Upload
from fedml_dapper.pruning import ChannelLayout, Tensors, slim_tensors


@dataclass(frozen=True)
class LateUpload:
    """Upload that will count in a later round."""

    change: Upload
    """The upload, with the change that training made in place of parameters and counters."""
    bytes_down: int
    """Bytes of the download from which its client began."""


@dataclass(frozen=True)
class AtWork:
    """A client that is still training when its round closes."""

    server: ServerState
    """Server state when the client's round opened."""
    bytes_down: int
    """Bytes of the download from which the client began."""

    @property
    def begun(self) -> int:
        """The round that the client began in."""
        return self.server.round + 1


def late_upload(upload: Upload, weights: Tensors, layout: ChannelLayout, bytes_down: int) -> LateUpload:
    """Keep an ``upload`` of a round whose clients start from the global ``weights``, for a later round."""
    before = _cut(upload, weights, layout)
    change = {
        name: tensor if layout.is_statistic(name) else _difference(tensor, before[name])
        for name, tensor in upload.weights.items()
    }
    return LateUpload(replace(upload, weights=change), bytes_down)


def arriving(late: LateUpload, round_: int, weights: Tensors, layout: ChannelLayout) -> Upload:
    """Return a late upload as it counts in ``round_``, whose clients start from the global ``weights``.

    Parameters are those of ``weights`` plus a share of the change (:func:`staleness_weight`); statistics are a mean of
    the upload's, with this share, and those of ``weights``. Counters, which are integers, change in full, and so do
    entries of true and false.
    """
    change = late.change
    share = staleness_weight(round_ - late.change.round)
    now = _cut(change, weights, layout)

    def moved(name: str, tensor: Tensor) -> Tensor:
        if layout.is_statistic(name):
            return now[name].lerp(tensor, share)
        if tensor.dtype == torch.bool:
            return now[name] ^ tensor
        return now[name] + (share * tensor if tensor.is_floating_point() else tensor)

    return replace(change, round=round_, weights={name: moved(name, tensor) for name, tensor in change.weights.items()})


def staleness_weight(rounds_late: int) -> float:
    """Return the share of a change that counts ``rounds_late`` rounds after its own: (1 + rounds)^-1/2, as FedBuff."""
    return float((1 + rounds_late) ** -0.5)


def _difference(tensor: Tensor, before: Tensor) -> Tensor:
    """Return what changed from ``before`` to ``tensor``; of true and false, whether an entry changed."""
    return tensor ^ before if tensor.dtype == torch.bool else tensor - before


def _cut(upload: Upload, weights: Tensors, layout: ChannelLayout) -> Tensors:
    """Cut the global model to the channels of ``upload``, on the upload's device."""
    named = {name: weights[name].to(tensor.device) for name, tensor in upload.weights.items()}
    return slim_tensors(named, layout, upload.plan, upload.unsliced)
