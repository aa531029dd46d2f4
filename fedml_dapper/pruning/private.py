"""Differentially private sums of slim models: clipped updates, and Gaussian noise on their sum.

Neighbouring runs differ in one client's uploads: with and without them. A client without an upload counts as one that
changed nothing (``federation.server``). So who takes part, who holds which coordinate (the plans, which the server
chooses) and all divisors are the same in both runs, and not secret.

With W the model before the round, x_i the update of client i over all coordinates that it sends, and C the clip:

    y_i = x_i min(1, C / |x_i|),    S = sum_i y_i + z C N(0, 1)^d

Each client enters one term of S, whose l2 norm over all of its coordinates together is at most C. That is the
sensitivity of S, whatever the clients hold; z is the noise multiplier of the Gaussian mechanism. Coordinates that
nobody holds get no noise, since their sum is 0 in both runs. With T clients in the round, h of which hold a coordinate,
the model is

* ``global``:   W + S / T        of sensitivity C / T
* ``zero``:     (h W + S) / T    of sensitivity C / T
* ``holders``:  W + S / h        of sensitivity C / min h, which one client reaches where it shares coordinates with
  fewest others

All three are functions of S, W and public numbers, so they inherit the guarantee of S. Noise on the sum is less than
noise for the sensitivity of the holders' mean: z C / h on a coordinate, and not z C / min h on all.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite, sqrt

import torch
from torch import Tensor

from fedml_dapper.pruning.clipping import BoundedMean
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.randomness.chacha20 import Noise


class PrivateMean(BoundedMean):
    """A :class:`RecoveringMean` of updates clipped to an l2 norm of ``clip``, with noise on the sums.

    Every client counts alike. Integer buffers (counters of batches) stay as they are. Where nothing is clipped and
    ``std`` is 0, floating-point tensors are those of :class:`RecoveringMean` bit for bit. Partial sums are clipped, and
    without noise.
    """

    def __init__(
        self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, clip: float | None, std: float, noise: Noise
    ) -> None:
        super().__init__(previous, layout, recovery)
        self._clip = clip
        self._std = std
        self._noise = noise

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add one client's upload, clipped; see :meth:`RecoveringMean.add`. ``weight`` is 1: clients count alike."""
        assert weight == 1, "Settings see to that"
        before = self._before(weights, plan, unsliced)
        self.take(clipped(weights, before, self._clip), plan, weight, unsliced)

    def result(self) -> dict[str, Tensor]:
        """Return the mean with noise on its sums; see :meth:`RecoveringMean.result`."""
        if self._std > 0:
            self.disturb(self._noise, self._std)
        return super().result()


@torch.no_grad()
def clipped(weights: Tensors, before: Tensors, clip: float | None) -> dict[str, Tensor]:
    """Clip the update from ``before`` to ``weights``, cut alike, to an l2 norm of ``clip`` over all tensors.

    Clipped tensors are float64, in which the limit holds; others keep their dtype. Integer tensors are taken from
    ``before``. An update that is not finite counts as none.
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
    """Add normal noise of standard deviation ``std`` to every floating-point tensor, which becomes float64."""
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
