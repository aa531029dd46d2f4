"""Whole random numbers of the discrete Gaussian, drawn exactly: P(y) is in proportion to exp(-y^2 / (2 std^2)).

As in Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1 to 3) a
candidate from a simpler law, drawn by whole numbers alone, is kept with the right probability. Here the candidate is
sign * (k std + j), with k from coin tosses, P(k) = 2^-(k+1), and j even in 0 to std - 1, as in Karney ("Sampling
exactly from the normal distribution", TOMS 2016). So a thousand candidates are drawn at once. One is kept where, with U
uniform in [0, 1),

    5/4 U 2^-k < exp(-(k std + j)^2 / (2 std^2)),

of which the right side is never above 5/4 2^-k. Of 0, which both signs give, that with a minus is dropped. About half
of all candidates are kept.

Floating point decides where its error cannot matter. Where both sides are nearer to each other than that, decimal
numbers of as many digits as it takes decide. So no rounding is in the result, and every machine comes to the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""So many even and independent words of 64 bits, each given out once."""
Whole = NDArray[np.int64]

LARGEST_STD = 2**31
_MOST_AT_ONCE = 2**15
"""Candidates, which stay in the processor's cache."""
_TOSSES = 27
"""For k, which is larger with probability 2^-27, and then kept with less than 2^-500: such a candidate is dropped."""
_PLACE_BITS = 64 - 1 - _TOSSES
_ERROR = 2.0**-44
"""By which floating point is never wrong in the comparison: both sides are below 1.3, and err by under 2^-49."""
_DIGITS = 50


def discrete_gaussian(words: Words, std: int, count: int) -> Whole:
    """``count`` independent numbers of mean 0 and parameter ``std``, from 1 to 2^31, which is their standard deviation
    to within 1e-7 where it is 1, and to the last digit of a float64 from 2 on."""
    if not 1 <= std <= LARGEST_STD:
        raise ValueError(f"std is {std}; it has to be between 1 and {LARGEST_STD}")
    drawn: Whole = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        kept = _kept_of(words, std, min(_MOST_AT_ONCE, 2 * (count - done) + 16))[: count - done]
        drawn[done : done + len(kept)] = kept
        done += len(kept)
    return drawn


def _kept_of(words: Words, std: int, candidates: int) -> Whole:
    """Those of the next ``candidates`` that are kept, in order."""
    first = words(candidates)
    uniform = words(candidates)
    tosses = first >> np.uint64(1) & np.uint64(2**_TOSSES - 1)
    lowest = tosses & (~tosses + np.uint64(1))  # 2^k, or 0
    place = first >> np.uint64(1 + _TOSSES)
    even = (1 << _PLACE_BITS) // std * std
    fits = (lowest > 0) & (place < even)
    is_negative = first & np.uint64(1) > 0
    size = (np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1) * std + (place % std).astype(np.int64)
    proposed = 1.25 * 2.0**-64 * uniform / np.maximum(lowest, 1)
    wanted = np.exp(-0.5 * np.square(size / std))
    is_kept = proposed < wanted
    for at in np.flatnonzero(fits & (np.abs(proposed - wanted) <= _ERROR)).tolist():
        is_kept[at] = _is_below(words, int(uniform[at]), int(lowest[at]), int(size[at]), std)
    is_kept &= fits & ~(is_negative & (size == 0))
    kept: Whole = np.where(is_negative, -size, size)[is_kept]
    return kept


def _is_below(words: Words, uniform: int, power: int, size: int, std: int) -> bool:
    """Whether 5/4 U / ``power`` < exp(-``size``^2 / (2 ``std``^2)), of whose U the first 64 bits are ``uniform``. More
    of them are drawn where these do not say, whatever floating point had to say before."""
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
