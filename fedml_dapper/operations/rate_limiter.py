"""Rate limit by a token bucket: a burst of events at once, and a number of events per second in the long run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Token bucket that starts full with ``at_once`` and fills by ``per_second`` of ``clock``. Safe from any thread."""

    def __init__(self, at_once: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = at_once
        self._per_second = per_second
        self._clock = clock
        self._left = at_once
        self._since = clock()
        self._lock = threading.Lock()

    def take(self, amount: float = 1) -> bool:
        """Take ``amount`` out; return False, with nothing taken, where less is left."""
        with self._lock:
            self._fill()
            if amount > self._left:
                return False
            self._left -= amount
            return True

    @property
    def is_full(self) -> bool:
        """Whether a new one would allow no more than this one."""
        with self._lock:
            self._fill()
            return self._left >= self._most

    def give_back(self, amount: float = 1) -> None:
        """Put back what was taken for an event that turned out not to count."""
        with self._lock:
            self._left = min(self._most, self._left + amount)

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + self._per_second * (now - self._since))
        self._since = now
