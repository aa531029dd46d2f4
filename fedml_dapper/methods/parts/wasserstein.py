"""Gaussians fitted to data that arrive in batches, and the 2-Wasserstein distance between them.

A Gaussian with diagonal covariance over c channels is a float64 tensor of shape (2, c): means, standard deviations.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wasserstein(left: Tensor, right: Tensor) -> Tensor:
    """Distance sqrt(||m - m'||^2 + ||s - s'||^2), shape (...), of Gaussians of shape (..., 2, c)."""
    return (left - right).square().sum(dim=(-2, -1)).sqrt()


class Moments:
    """Mean, standard deviation (of the population) and range of each channel, exact whatever the batches."""

    def __init__(self, channels: int, device: torch.device | str = "cpu") -> None:
        self._count = 0
        self._mean = torch.zeros(channels, dtype=torch.float64, device=device)
        self._deviations = torch.zeros_like(self._mean)
        """Sum of squared deviations from the mean."""
        self._low = torch.full_like(self._mean, torch.inf)
        self._high = torch.full_like(self._mean, -torch.inf)

    def add(self, values: Tensor) -> None:
        """Take in ``values`` (n, c)."""
        values, known, new = values.detach().double(), self._count, len(values)
        variance, mean = torch.var_mean(values, dim=0, correction=0)
        shift = mean - self._mean
        self._count = known + new
        self._deviations += variance * new + shift.square() * known * new / self._count
        self._mean += shift * new / self._count
        self._low = torch.minimum(self._low, values.amin(dim=0))
        self._high = torch.maximum(self._high, values.amax(dim=0))

    def gaussian(self) -> Tensor:
        """The Gaussian of the values so far, shape (2, c)."""
        return torch.stack([self._mean, (self._deviations / self._count).sqrt()])

    def scaled(self) -> Tensor:
        """The Gaussian of the values scaled to [0, 1], (v - min) / (max - min) in each channel; 0, 0 of constants."""
        span = self._high - self._low
        mean, deviation = self.gaussian()
        scaled = torch.stack([mean - self._low, deviation]) / span
        return torch.where(span > 0, scaled, 0.0)
