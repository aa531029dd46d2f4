"""Standard streams that the shell has closed, as by ``>&-``."""

from __future__ import annotations

import os


def fill_closed_streams() -> None:
    """Let ``/dev/null`` take the place of standard streams that are closed.

    Otherwise the next files that are opened, such as a run's ledger, get their numbers, and all that libraries print.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the system gives it the lowest number that is free, which is this one
