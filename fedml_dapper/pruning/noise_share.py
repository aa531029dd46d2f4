"""What a client of a secure sum does to its change, so that the sum is differentially private when it opens.

The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke, ICML 2021): a client's change is cut down to an
l2 norm of C, written in whole steps, and whole numbers of the discrete Gaussian are added before the masks. No
coordinate opens over fewer than ``min_holders`` clients that added theirs. So a standard deviation of
z C / sqrt(``min_holders``) each leaves every coordinate of the sum the noise of multiplier z that is counted, whoever
drops out. Of h holders that stay the noise is sqrt(h / ``min_holders``) times that, and nothing is counted for the
rest. With ``min_holders`` at the threshold, which is more than half of a round's clients, that is below sqrt(2).

Schemes that take the rest off once it is known who stayed (Jiang et al., "Dordis", EuroSys 2024) have every client
share out one more seed for each number of drop-outs. For a factor of less than sqrt(2) that is left out here.

Neighbours are two runs, in one of which a client's change is nothing; it adds its noise in both. Rounding d coordinates
moves a change by up to sqrt(d) / 2 steps, so it is cut down by as much more: what is sent, in whole steps, has a norm
of at most C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.noise import Noise


@dataclass(frozen=True, eq=False)
class NoiseShare:
    """Of one client in one round."""

    clip: float | None
    """Largest l2 norm of its change; None for no limit."""
    std: int
    """Of its noise on each coordinate, in steps; 0 for none."""
    noise: Noise

    def shortened(self, changes: Mapping[str, Tensor], step: float) -> dict[str, Tensor]:
        """``changes``, float64 and finite, such that rounded to multiples of ``step`` they have a norm of at most
        ``clip``."""
        if self.clip is None:
            return dict(changes)
        norm = sqrt(sum(float(change.square().sum()) for change in changes.values()))
        room = max(0.0, self.clip - step * rounding(sum(change.numel() for change in changes.values())))
        if norm <= room:
            return dict(changes)
        return {name: room / norm * change for name, change in changes.items()}

    def disturbed(self, numbers: Mapping[str, NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
        """``numbers`` with noise on each, modulo 2^32; tensors have theirs in the order of their names."""
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
    """The most by which rounding to whole steps lengthens so many coordinates together, in steps; with one step more
    for what float64 rounds where it measures them."""
    return sqrt(coordinates) / 2 + 1
