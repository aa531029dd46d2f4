"""Exact sampling of the discrete Gaussian: integers y with probability proportional to exp(-y^2 / (2 std^2)).

As in Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1 to 3), a
candidate from a simpler distribution, drawn in integer arithmetic, is accepted with the right probability. Deviation:
here the candidate is sign * (k std + j), with k from coin tosses, P(k) = 2^-(k+1), and j uniform in 0 to std - 1, as in
Karney ("Sampling exactly from the normal distribution", TOMS 2016), so that thousands of candidates are drawn at once.
With U uniform in [0, 1), a candidate is accepted where

    5/4 U 2^-k < exp(-(k std + j)^2 / (2 std^2)),

whose right side is never above 5/4 2^-k. Both signs give 0, so the one with a minus is rejected. About half of all
candidates are accepted.

The comparison is made in floating point where its error cannot matter. Where both sides are closer than that, it is
made in decimal numbers of as many digits as it takes. So the result has no rounding, and is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""Function that returns a number of uniform, independent words of 64 bits, each given out once."""
Whole = NDArray[np.int64]

LARGEST_STD = 2**31
_MOST_AT_ONCE = 2**15
"""Number of candidates that are drawn at a time, which stay in the processor's cache."""
_TOSSES = 27
"""Number of coin tosses for k. It is larger with probability 2^-27, and then accepted with less than 2^-500: such a
candidate is rejected."""
_PLACE_BITS = 64 - 1 - _TOSSES
"""Bits of a word that are left for j, besides the sign and the tosses."""
_ERROR = 2.0**-44
"""Bound on floating point's error in the comparison: both sides are below 1.3, and err by less than 2^-49."""
_DIGITS = 50
"""Decimal digits of the exact comparison, besides one per bit of U."""


def discrete_gaussian(words: Words, std: int, count: int) -> Whole:
    """Draw independent numbers of mean 0.

    Args:
        words: Source of random words.
        std: Parameter of the distribution, from 1 to 2^31. It is the standard deviation to within 1e-7 where it is 1,
            and to the last digit of a float64 from 2 on.
        count: How many numbers.

    Raises:
        ValueError: ``std`` is out of range.
    """
    if not 1 <= std <= LARGEST_STD:
        raise ValueError(f"std is {std}; it has to be between 1 and {LARGEST_STD}")
    drawn: Whole = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        # half of the candidates are accepted, and a few more make up for bad luck
        accepted = _accepted(words, std, min(_MOST_AT_ONCE, 2 * (count - done) + 16))[: count - done]
        drawn[done : done + len(accepted)] = accepted
        done += len(accepted)
    return drawn


def _accepted(words: Words, std: int, candidates: int) -> Whole:
    """Draw candidates, and return the accepted ones, in order."""
    first = words(candidates)
    uniform = words(candidates)
    tosses = first >> np.uint64(1) & np.uint64(2**_TOSSES - 1)
    lowest = tosses & (~tosses + np.uint64(1))  # 2^k, or 0
    place = first >> np.uint64(1 + _TOSSES)
    uniform_below = (1 << _PLACE_BITS) // std * std  # the largest multiple of std, so that place % std is uniform
    fits = (lowest > 0) & (place < uniform_below)
    is_negative = first & np.uint64(1) > 0
    size = (np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1) * std + (place % std).astype(np.int64)
    proposed = 1.25 * 2.0**-64 * uniform / np.maximum(lowest, 1)
    wanted = np.exp(-0.5 * np.square(size / std))
    is_accepted = proposed < wanted
    for at in np.flatnonzero(fits & (np.abs(proposed - wanted) <= _ERROR)).tolist():
        is_accepted[at] = _is_below(words, int(uniform[at]), int(lowest[at]), int(size[at]), std)
    is_accepted &= fits & ~(is_negative & (size == 0))
    accepted: Whole = np.where(is_negative, -size, size)[is_accepted]
    return accepted


def _is_below(words: Words, uniform: int, power: int, size: int, std: int) -> bool:
    """Return exactly whether 5/4 U / ``power`` < exp(-``size``^2 / (2 ``std``^2)).

    ``uniform`` are the first 64 bits of U; more are drawn where these do not decide.
    """
    bits = 64
    while True:
        with localcontext(Context(prec=_DIGITS + bits)) as context:
            bound = (Decimal(-size * size) / (2 * std * std)).exp() * 4 * power * 2**bits / 5
            error = bound.scaleb(20 - context.prec)
            if uniform + 1 <= bound - error:
                return True
            if uniform >= bound + error:
                return False
        uniform = uniform * 2**64 + int(words(1)[0])
        bits = bits + 64
