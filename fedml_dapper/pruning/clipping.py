"""Relative change of an upload, and an average of uploads whose relative change is limited."""

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
    """Return ||w - W|| / ||W|| over all floating-point tensors of ``weights``, in float64.

    ``before`` holds W in the same shapes. The result is infinite where W is 0 and w is not.
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


class ClippedMean(RecoveringMean):
    """A :class:`RecoveringMean` of uploads whose relative change is scaled down to ``limit`` where it is larger.

    The direction of a change stays. Only the running sums are kept in memory, and where nothing is clipped the result
    is that of :class:`RecoveringMean` bit for bit.
    """

    def __init__(self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, limit: float) -> None:
        super().__init__(previous, layout, recovery)
        self._limit = limit

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add one client's upload, clipped; see :meth:`RecoveringMean.add`."""
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        before = slim_tensors({name: self._previous[name] for name in weights}, self._layout, plan, unsliced)
        change = relative_change(weights, before)
        if change > self._limit:
            share = self._limit / change
            weights = {name: towards(tensor, before[name], share) for name, tensor in weights.items()}
        self.take(weights, plan, weight, unsliced)
        if change > self._limit:
            self.fold()  # a clipped upload is a copy, which would take memory while it waits


@torch.no_grad()
def towards(tensor: Tensor, before: Tensor, share: float) -> Tensor:
    """Return W + share (w - W); integer tensors (counters) are returned as they are."""
    if not tensor.is_floating_point():
        return tensor
    start = before.double()
    return (start + share * (tensor.to(start.device).double() - start)).to(tensor.dtype)
