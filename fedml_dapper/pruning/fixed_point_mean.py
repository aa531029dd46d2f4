"""Means of slim models whose changes are summed in whole numbers, as they are under masks (``secure_sum``).

A client's change of every coordinate is cut down to the largest that is allowed, and rounded to a multiple of
1 / ``scale``. Sums of such numbers are exact, whatever their order. So a simulation, which adds them up one by one, and
a server that learns no more than their sum come to the same model bit for bit. With W the model before, S the sum of
changes over T clients, and h of them that hold a coordinate:

* ``global``:   W + S / T
* ``zero``:     (h W + S) / T
* ``holders``:  W + S / h

and W where fewer than ``min_holders`` hold it.
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
    """A mean of changes in fixed point, in which clients count alike. Integer buffers stay as they are."""

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
        """In float64, where whole numbers are exact up to 2^53."""
        self._total = 0.0

    def add(
        self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = (),
        share: NoiseShare | None = None,
    ) -> None:  # fmt: skip
        """As :meth:`RecoveringMean.add`, of weight 1, with a ``share`` of noise where clients add that."""
        assert weight == 1, "Settings see to that"
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        before = slim_tensors({name: self._previous[name] for name in weights}, self._layout, plan, unsliced)
        kept = KeptIndices(plan)
        for name, numbers in encoded_changes(weights, before, self._code, share).items():
            cuts = {} if name in unsliced else kept.of(self._layout.tensors[name])
            self._sums[name].add(Sent(torch.from_numpy(numbers), cuts, weight))
        self._total += weight

    def partial(self) -> PartialSum:
        """As :meth:`RecoveringMean.partial`, in multiples of 1 / ``scale``."""
        return PartialSum(self._total, {name: each.so_far for name, each in self._sums.items()})

    def merge(self, partial: PartialSum) -> None:
        """As :meth:`RecoveringMean.merge`, of changes in multiples of 1 / ``scale``."""
        for name, each in self._sums.items():
            each.merge(*partial.sums[name])
        self._total += partial.total

    def result(self) -> dict[str, Tensor]:
        """As :meth:`RecoveringMean.result`."""
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
    """What ``weights`` changed since ``before``, cut alike, for every tensor of floats; clipped and with noise where
    there is a ``share`` of it. Nothing changed where some of it is not finite: who diverged counts so."""
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
