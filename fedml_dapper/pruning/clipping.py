"""How far an upload moves away from what it started from, and averages of uploads that are held to a limit."""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt

import torch
from torch import Tensor

from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import RecoveringMean, check_fits
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.slim import slim_tensors


def relative_change(weights: Tensors, before: Tensors) -> float:
    """||w - W|| / ||W|| over all floating-point tensors of ``weights``, in float64; ``before`` has the same shapes.

    Infinite where W is 0 and w is not.
    """
    moved = 0.0
    length = 0.0
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            start = before[name].detach().double()
            moved += float((tensor.detach().to(start.device).double() - start).square().sum())
            length += float(start.square().sum())
    if length == 0:
        return 0.0 if moved == 0 else float("inf")
    return sqrt(moved / length)


class BoundedMean:
    """A :class:`RecoveringMean` of uploads that may have moved only so far from what they started from."""

    def __init__(self, previous: Tensors, layout: ChannelLayout, recovery: Recovery) -> None:
        self._previous = previous
        self._layout = layout
        self._mean = RecoveringMean(previous, layout, recovery)

    def hold(self) -> None:
        """As :meth:`RecoveringMean.hold`."""
        self._mean.hold()

    def fold(self) -> None:
        """As :meth:`RecoveringMean.fold`."""
        self._mean.fold()

    def _before(self, weights: Tensors, plan: PruningPlan, unsliced: Collection[str]) -> dict[str, Tensor]:
        """What an upload started from; raises :class:`ProtocolError` where it is not of the plan's shapes."""
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        return slim_tensors({name: self._previous[name] for name in weights}, self._layout, plan, unsliced)


class ClippedMean(BoundedMean):
    """A :class:`RecoveringMean` of uploads whose relative change is cut down to ``limit`` where it is larger.

    The direction stays. Nothing but the running sums is held, and where nothing is clipped the result is
    :class:`RecoveringMean`'s bit for bit.
    """

    def __init__(self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, limit: float) -> None:
        super().__init__(previous, layout, recovery)
        self._limit = limit

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """As :meth:`RecoveringMean.add`."""
        before = self._before(weights, plan, unsliced)
        change = relative_change(weights, before)
        if change > self._limit:
            share = self._limit / change
            weights = {name: towards(tensor, before[name], share) for name, tensor in weights.items()}
        self._mean.add(weights, plan, weight, unsliced)
        if change > self._limit:
            self._mean.fold()  # a copy was made, which is not to wait

    def result(self) -> dict[str, Tensor]:
        """As :meth:`RecoveringMean.result`."""
        return self._mean.result()


@torch.no_grad()
def towards(tensor: Tensor, before: Tensor, share: float) -> Tensor:
    """W + share (w - W); counters are left as they are."""
    if not tensor.is_floating_point():
        return tensor
    start = before.double()
    return (start + share * (tensor.to(start.device).double() - start)).to(tensor.dtype)
