"""Fixed-point code of real numbers as integers modulo 2^32.

Sums of such integers are exact: they are the same in any order, and masks cancel without rounding.

A number is clipped to ``largest`` in size, and rounded to a multiple of 1 / ``scale``. The scale is the largest power
of two with which no sum of ``summands`` numbers wraps around:

    (summands * largest + 12 noise) * scale <= 2^31 - 1

where ``noise`` is the standard deviation of normal noise in the sum, which exceeds 12 standard deviations with
probability 2^-107. One number is off by at most 1 / (2 scale), and so is the mean of any number of them: with ten
summands of size 1 by 2^-28, or 3.7e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import floor, log2

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
"""Integers modulo 2^32."""
_LARGEST_SUM = 2**31 - 1
_DEVIATIONS = 12
"""Standard deviations of noise that a sum has room for."""


@dataclass(frozen=True)
class FixedPoint:
    """Code of numbers up to ``largest`` in size, of which up to ``summands`` are added; both are above 0."""

    largest: float
    summands: int
    noise: float = 0.0
    """Standard deviation of noise in the sum."""

    @cached_property
    def scale(self) -> float:
        """Number of steps per unit, a power of two."""
        return float(2.0 ** floor(log2(_LARGEST_SUM / (self.summands * self.largest + _DEVIATIONS * self.noise))))

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return ``values``, clipped and in steps of 1 / ``scale``, rounded half to even. NaN is not allowed."""
        cut = np.clip(values, -self.largest, self.largest)
        rounded: NDArray[np.int32] = np.rint(cut * self.scale).astype(np.int32)
        return rounded

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum of numbers whose codes sum to ``total``."""
        return total / self.scale


def as_words(numbers: NDArray[np.int32]) -> Words:
    """Return integers as the same bits modulo 2^32, for masks."""
    return numbers.view(np.uint32)


def as_numbers(words: Words) -> NDArray[np.int64]:
    """Return the integers between -2^31 and 2^31 - 1 that ``words`` stand for."""
    return words.view(np.int32).astype(np.int64)
