"""Differentially private sums of slim models: no client moves a sum by more than it may, and noise hides that much.

Neighbours are two runs that differ in one client's uploads: with and without them. A client without an upload counts as
one that changed nothing (``federation.server``). So who takes part, who holds which coordinate (the plans, which the
server chooses) and all that is divided by are the same in both, and no part of the secret.

With W the model before the round, x_i what client i changed, over all coordinates that it sends, and C the clip:

    y_i = x_i min(1, C / |x_i|),    S = sum_i y_i + z C N(0, 1)^d

A client is in one term of S, whose l2 norm over all of its coordinates together is at most C. That is the sensitivity
of S, whatever the clients hold; z is the noise multiplier of the Gaussian mechanism. Coordinates that nobody holds have
no noise, since their sum is 0 in both runs. With T clients in the round, h of which hold a coordinate, the model is

* ``global``:   W + S / T        of sensitivity C / T
* ``zero``:     (h W + S) / T    of sensitivity C / T
* ``holders``:  W + S / h        of sensitivity C / min h, which one client reaches where it shares coordinates with
  fewest others

All three come from S, W and known numbers, so that S's guarantee is theirs. Noise on the sum is less than noise for the
sensitivity of the holders' mean: z C / h on a coordinate, and not z C / min h on all.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite, sqrt

import torch
from torch import Tensor

from fedml_dapper.noise import Noise
from fedml_dapper.pruning.clipping import BoundedMean
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import PartialSum
from fedml_dapper.pruning.running_sum import Recovery


class PrivateMean(BoundedMean):
    """A :class:`RecoveringMean` of uploads whose change is at most ``clip``, with noise on the sums.

    Clients count alike. Integer buffers (counters of batches) stay as they are. Where nothing is clipped and ``std`` is
    0 the floats are :class:`RecoveringMean`'s bit for bit.
    """

    def __init__(
        self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, clip: float | None, std: float, noise: Noise
    ) -> None:
        super().__init__(previous, layout, recovery)
        self._clip = clip
        self._std = std
        self._noise = noise

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """As :meth:`RecoveringMean.add`, of weight 1."""
        assert weight == 1, "Settings see to that"
        before = self._before(weights, plan, unsliced)
        self._mean.take(clipped(weights, before, self._clip), plan, weight, unsliced)

    def partial(self) -> PartialSum:
        """As :meth:`RecoveringMean.partial`: clipped, without noise."""
        return self._mean.partial()

    def merge(self, partial: PartialSum) -> None:
        """As :meth:`RecoveringMean.merge`, of what another has clipped."""
        self._mean.merge(partial)

    def result(self) -> dict[str, Tensor]:
        """As :meth:`RecoveringMean.result`, of the sums with noise."""
        if self._std > 0:
            self._mean.disturb(self._noise, self._std)
        return self._mean.result()


@torch.no_grad()
def clipped(weights: Tensors, before: Tensors, clip: float | None) -> dict[str, Tensor]:
    """``weights`` whose change since ``before``, cut alike, has an l2 norm of at most ``clip`` over all tensors.

    Integer tensors are those before. What is shortened is float64, in which the limit holds; what is not is as it came.
    A change that is not finite counts as none.
    """
    floats = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    norm = sqrt(sum(float(_change(tensor, before[name]).square().sum()) for name, tensor in floats.items()))
    if not isfinite(norm):
        return dict(before)
    if clip is None or norm <= clip:
        return {name: floats.get(name, before[name]) for name in weights}
    share = clip / norm
    return {
        name: before[name].double() + share * _change(floats[name], before[name]) if name in floats else before[name]
        for name in weights
    }


@torch.no_grad()
def disturbed(weights: Tensors, std: float, noise: Noise) -> dict[str, Tensor]:
    """``weights`` with normal numbers of standard deviation ``std`` added to every float, which is float64 then."""
    if std == 0:
        return dict(weights)
    return {
        name: tensor.double() + std * noise.normal(tensor.shape, tensor.device)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


def _change(tensor: Tensor, before: Tensor) -> Tensor:
    return tensor.detach().to(before.device).double() - before.detach().double()
