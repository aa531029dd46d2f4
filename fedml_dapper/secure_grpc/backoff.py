"""Pauses before another call, none as long as another's: who was cut off together does not come back together."""

from __future__ import annotations

import random

SHORTEST = 0.5
LONGEST = 1.5
"""Bounds of a pause, as shares of what it would be without chance."""


class Backoff:
    """Pauses that grow while a server does not answer: each is about twice the one before, up to a longest.

    Args:
        first_s: About so many seconds is the first.
        last_s: About so many seconds is each from some time on.
    """

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s
        self.waited_s = 0.0
        """Seconds of all pauses since something has come of a call."""

    def pause(self) -> float:
        """Return the seconds to wait now."""
        seconds = self._next_s * random.uniform(SHORTEST, LONGEST)
        self._next_s = min(2 * self._next_s, self._last_s)
        self.waited_s += seconds
        return seconds

    def begin_anew(self) -> None:
        """Call when something has come of a call."""
        self._next_s = self._first_s
        self.waited_s = 0.0


def jittered(seconds: float) -> float:
    """Return about so many seconds, for those that were told the same."""
    return seconds * random.uniform(0.8, 1.2)
