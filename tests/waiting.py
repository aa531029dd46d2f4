"""Waiting for what a test has set going, however fast or slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def wait_until(
    is_so: Callable[[], object], seconds: float = 300, otherwise: Callable[[], object] = lambda: "it did not happen"
) -> None:
    """Return once ``is_so``. The ``seconds`` are no promise, only the end of waiting for what never happens; the
    failure says what ``otherwise`` gives then."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(LOOK_EVERY_S)
