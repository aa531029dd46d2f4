"""What a server of devices lacks for its next round, for the log and for operators."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedml_dapper.federation.round.checked_in import CheckedIn

LOGGER = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 60.0
LAST_PAUSE_SECONDS = 3600.0
"""Pauses between two lines of the log on one shortage; each is twice the one before."""


class Shortage:
    """Says why no round opens: nobody calls, those that call are left out, or they are too few.

    Args:
        there: Devices that have called lately.
        fewest: Fewest devices of a round.
        clock: Seconds.
    """

    def __init__(self, there: CheckedIn, fewest: int, clock: Callable[[], float]) -> None:
        self._there = there
        self._fewest = fewest
        self._clock = clock
        self.end()

    def end(self) -> None:
        """Note that nothing is lacking: a round opens, or has closed just now."""
        self._since = self._clock()
        self._said = self._clock()
        self._pause = FIRST_PAUSE_SECONDS

    def remind(self, round_: int) -> None:
        """Log why ``round_`` does not open, unless that was said not long ago."""
        if self._clock() - self._said < self._pause:
            return
        self._said = self._clock()
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)
        LOGGER.warning("round %d does not open: %s", round_, self.describe())

    def describe(self) -> str:
        """Return in words what is lacking."""
        num_present = len(self._there.present())
        num_able = len(self._there.able())
        num_out = len(self._there.left_out())
        if not num_present:
            return f"no device has called for {(self._clock() - self._last_call()) / 60:.0f} min"
        if num_out == num_present:
            return (
                f"all {num_present} devices that call are left out; a quarantine counts rounds, and none passes: let"
                " one in by `fedml-dapper steer HOST lift silo-N`"
            )
        num_untrained = num_present - num_able - num_out
        left_out = f", and {num_out} that call are left out" if num_out else ""
        untrained = f", and {num_untrained} that call have a level that is not trained" if num_untrained else ""
        asked_for = f"the {self._fewest} devices that min_clients_per_round asks for"
        return f"{num_able} of {asked_for} are there{left_out}{untrained}"

    def _last_call(self) -> float:
        return self._since if self._there.last_call is None else max(self._since, self._there.last_call)
