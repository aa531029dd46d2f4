"""Real numbers as whole ones modulo 2^32, so that their sum is the same in any order, and no mask is lost to rounding.

A number of size up to ``largest`` is rounded to a multiple of 1 / ``scale``; what is larger is cut down to that. The
scale is the largest power of two with which no sum of so many ``summands`` wraps:

    (summands * largest + 12 noise) * scale <= 2^31 - 1

where ``noise`` is the standard deviation of what normal noise the summands bring along: beyond 12 of them lie 2^-107 of
it. So one number is off by at most 1 / (2 scale), and so is the mean of any number of them: with ten summands of size 1
by 2^-28, or 3.7e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import floor, log2

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_LARGEST_SUM = 2**31 - 1
_DEVIATIONS = 12
"""That noise has room for."""


@dataclass(frozen=True)
class FixedPoint:
    """How numbers up to ``largest``, of which up to ``summands`` are added, are written; both above 0."""

    largest: float
    summands: int
    noise: float = 0.0
    """Standard deviation of noise on the sum."""

    @cached_property
    def scale(self) -> float:
        """A power of two."""
        return float(2.0 ** floor(log2(_LARGEST_SUM / (self.summands * self.largest + _DEVIATIONS * self.noise))))

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """The multiples of 1 / ``scale`` nearest to ``values``, halves to even, in the same shape. Not for NaN."""
        cut = np.clip(values, -self.largest, self.largest)
        rounded: NDArray[np.int32] = np.rint(cut * self.scale).astype(np.int32)
        return rounded

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The numbers that a sum of encoded ones stands for."""
        return total / self.scale


def as_words(numbers: NDArray[np.int32]) -> Words:
    """Whole numbers modulo 2^32, for masks."""
    return numbers.view(np.uint32)


def as_numbers(words: Words) -> NDArray[np.int64]:
    """What ``words`` stand for, between -2^31 and 2^31 - 1."""
    return words.view(np.int32).astype(np.int64)
