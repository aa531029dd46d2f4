"""A penalty for batch statistics that drift from the statistics all clients agreed on (FDSE Eq. 4-7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Statistics = tuple[Tensor, Tensor]
"""Mean and variance per channel, each of shape (d,)."""


class ConsistencyLoss:
    """Consistency loss L_Con over a client's batches in one round, for layers whose agreed statistics are ``agreed``,
    first to last.

    The running estimates start at the agreed statistics and keep the share ``keep`` of themselves at every batch. Only
    the present batch is differentiated; deeper layers weigh more the larger ``beta`` is.
    """

    def __init__(self, agreed: Sequence[Statistics], keep: float, beta: float) -> None:
        self._agreed = agreed
        self._running = list(agreed)
        self._keep = keep
        self._weights = layer_weights(len(agreed), beta)

    def __call__(self, features: Sequence[Tensor]) -> Tensor:
        """Loss sum_l w_l L_l, a scalar, of the present batch's ``features``, per layer (B, d) or (B, d, H, W)."""
        total = features[0].new_zeros(())
        for layer, (batch, agreed, weight) in enumerate(zip(features, self._agreed, self._weights, strict=True)):
            estimate = self._blend(self._running[layer], batch_statistics(batch))
            self._running[layer] = (estimate[0].detach(), estimate[1].detach())
            total = total + weight * inconsistency(estimate, agreed)
        return total

    def _blend(self, running: Statistics, present: Statistics) -> Statistics:
        """Running estimate g running + (1 - g) present (Eq. 5)."""
        mean, variance = (self._keep * old + (1 - self._keep) * new for old, new in zip(running, present, strict=True))
        return mean, variance


def batch_statistics(features: Tensor) -> Statistics:
    """Mean and biased variance per channel over batch and positions (Eq. 4)."""
    variance, mean = torch.var_mean(features, dim=[dim for dim in range(features.dim()) if dim != 1], correction=0)
    return mean, variance


def inconsistency(estimate: Statistics, agreed: Statistics) -> Tensor:
    """Inconsistency of a layer: L_l = ||m - m_g||^2 / d + ((||v||_1 - ||v_g||_1) / d)^2 (Eq. 6)."""
    (mean, variance) = estimate
    (agreed_mean, agreed_variance) = agreed
    return (mean - agreed_mean).square().mean() + (variance.abs().mean() - agreed_variance.abs().mean()).square()


def layer_weights(layers: int, beta: float) -> list[float]:
    """Weights of the layers: w_l = e^(beta l) / sum_m e^(beta m), l from 1 (Eq. 7)."""
    weights: list[float] = torch.softmax(beta * torch.arange(1, layers + 1, dtype=torch.float64), dim=0).tolist()
    return weights


@contextmanager
def entering(layers: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """List of the inputs of ``layers`` in the forward pass made inside."""
    received: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _layer, inputs: received.append(inputs[0])) for layer in layers]
    try:
        yield received
    finally:
        for hook in hooks:
            hook.remove()
