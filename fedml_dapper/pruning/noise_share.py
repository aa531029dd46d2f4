"""One client's share of the noise that makes a secure sum differentially private.

The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke, ICML 2021): a client scales its update down to an
l2 norm of C, writes it in whole steps, and adds integers of the discrete Gaussian before the masks. No coordinate opens
over fewer than ``min_holders`` clients that added their noise. So a standard deviation of z C / sqrt(``min_holders``)
per client leaves every coordinate of the sum at least the noise of multiplier z that the accountant counts, whoever
drops out. With h holders that stay, the noise is sqrt(h / ``min_holders``) times that; the surplus is not accounted
for. With ``min_holders`` at the threshold, which is more than half of a round's clients, the factor is below sqrt(2).

Deviation: schemes that remove the surplus once it is known who stayed (Jiang et al., "Dordis", EuroSys 2024) have every
client share one more seed for each number of drop-outs. For a factor of less than sqrt(2) that is left out here.

Neighbouring runs differ in one client, whose update is zero in one of them; it adds its noise in both. Rounding d
coordinates moves an update by up to sqrt(d) / 2 steps, so the limit for the update is lower by that much: what is sent,
in whole steps, has a norm of at most C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.randomness.chacha20 import Noise


@dataclass(frozen=True, eq=False)
class NoiseShare:
    """Clipping and noise of one client in one round."""

    clip: float | None
    """Largest l2 norm of its update; None for no limit."""
    std: int
    """Standard deviation of its noise on each coordinate, in steps; 0 for none."""
    noise: Noise

    def shortened(self, changes: Mapping[str, Tensor], step: float) -> dict[str, Tensor]:
        """Scale ``changes`` so that their norm is at most ``clip`` even once they are rounded to multiples of ``step``.

        ``changes`` are float64 and finite.
        """
        if self.clip is None:
            return dict(changes)
        norm = sqrt(sum(float(change.square().sum()) for change in changes.values()))
        room = max(0.0, self.clip - step * rounding(sum(change.numel() for change in changes.values())))
        if norm <= room:
            return dict(changes)
        return {name: room / norm * change for name, change in changes.items()}

    def disturbed(self, numbers: Mapping[str, NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
        """Add noise to every number, modulo 2^32. Tensors draw theirs in the order of their names."""
        if self.std == 0:
            return dict(numbers)
        names = sorted(numbers)
        drawn = self.noise.discrete(self.std, sum(numbers[name].size for name in names))
        parts = np.split(drawn, np.cumsum([numbers[name].size for name in names])[:-1])
        return {
            name: (numbers[name] + part.reshape(numbers[name].shape)).astype(np.int32)
            for name, part in zip(names, parts, strict=True)
        }


def rounding(coordinates: int) -> float:
    """Bound on how much rounding to whole steps lengthens a vector of so many coordinates, in steps.

    One step is added for the rounding errors of float64 in the norm itself.
    """
    return sqrt(coordinates) / 2 + 1
