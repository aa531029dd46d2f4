"""Means of slim models whose updates are summed in integers, as they are under masks (``secure_sum``).

A client's update of every coordinate is clamped to the largest allowed, and rounded to a multiple of 1 / ``scale``.
Sums of integers are exact in any order. So a simulation, which adds them one by one, and a server that learns no more
than their sum come to the same model bit for bit. With W the model before, S the sum of updates over T clients, and h
of them that hold a coordinate, the model is

* ``global``:   W + S / T
* ``zero``:     (h W + S) / T
* ``holders``:  W + S / h

and W where fewer than ``min_holders`` clients hold it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.noise_share import NoiseShare
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import PartialSum, check_fits
from fedml_dapper.pruning.running_sum import Recovery, RunningSum, Sent
from fedml_dapper.pruning.slim import KeptIndices, slim_tensors
from fedml_dapper.secure_sum import FixedPoint

Numbers = dict[str, NDArray[np.int32]]


class FixedPointMean:
    """A mean of fixed-point updates in which every client counts alike. Integer buffers stay as they are."""

    def __init__(
        self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, code: FixedPoint, min_holders: int
    ) -> None:
        self._previous = previous
        self._layout = layout
        self._recovery: Recovery = recovery
        self._code = code
        self._min_holders = min_holders
        self._sums = {
            name: RunningSum(layout.tensors[name], tensor.device)
            for name, tensor in previous.items()
            if tensor.is_floating_point()
        }
        """Sums in float64, where integers are exact up to 2^53."""
        self._total = 0.0

    def add(
        self,
        weights: Tensors,
        plan: PruningPlan,
        weight: float,
        unsliced: Collection[str] = (),
        share: NoiseShare | None = None,
    ) -> None:
        """Add one client's upload, with its ``share`` of noise where clients add that; see :meth:`RecoveringMean.add`.

        ``weight`` is 1, as every client counts alike.
        """
        assert weight == 1, "Settings see to that"
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        before = slim_tensors({name: self._previous[name] for name in weights}, self._layout, plan, unsliced)
        kept = KeptIndices(plan)
        for name, numbers in encoded_changes(weights, before, self._code, share).items():
            cuts = {} if name in unsliced else kept.of(self._layout.tensors[name])
            self._sums[name].add(Sent(torch.from_numpy(numbers), cuts, weight))
        self._total += weight

    def partial(self) -> PartialSum:
        """Return the sums so far, in multiples of 1 / ``scale``; see :meth:`RecoveringMean.partial`."""
        return PartialSum(self._total, {name: each.so_far for name, each in self._sums.items()})

    def merge(self, partial: PartialSum) -> None:
        """Add the sums of another mean, in multiples of 1 / ``scale``; see :meth:`RecoveringMean.merge`."""
        for name, each in self._sums.items():
            each.merge(*partial.sums[name])
        self._total += partial.total

    def result(self) -> dict[str, Tensor]:
        """See :meth:`RecoveringMean.result`."""
        if self._total <= 0:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        return {
            name: self._mean(self._sums.pop(name), tensor) if name in self._sums else tensor
            for name, tensor in self._previous.items()
        }

    def _mean(self, sums: RunningSum, previous: Tensor) -> Tensor:
        total, held = sums.so_far
        change = total / self._code.scale
        before = previous.double().view(total.shape)
        match self._recovery:
            case "global":
                mean = before + change / self._total
            case "zero":
                mean = (held * before + change) / self._total
            case "holders":
                mean = before + change / held
        return torch.where(held >= self._min_holders, mean, before).to(previous.dtype).view(previous.shape)


@torch.no_grad()
def encoded_changes(weights: Tensors, before: Tensors, code: FixedPoint, share: NoiseShare | None = None) -> Numbers:
    """Encode the update from ``before`` to ``weights``, cut alike, of every floating-point tensor.

    The update is clipped and gets noise where a ``share`` of it is given. An update with a value that is not finite
    counts as zero, so a client that diverged changes nothing.
    """
    changes = {
        name: tensor.detach().double() - before[name].to(tensor.device).double()
        for name, tensor in weights.items()
        if tensor.is_floating_point()
    }
    if not all(bool(change.isfinite().all()) for change in changes.values()):
        changes = {name: torch.zeros_like(change) for name, change in changes.items()}
    if share is not None:
        changes = share.shortened(changes, 1 / code.scale)
    numbers = {name: code.encode(change.cpu().numpy()) for name, change in changes.items()}
    return numbers if share is None else share.disturbed(numbers)
