"""Measurement of a round's model by devices that call, on their own test samples."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fedml_dapper.federation import Measurement
from fedml_dapper.platform.device_tickets import Tickets


class DeviceMeasuring:
    """Asks devices as they call, until enough have measured or there is nobody left to wait for.

    Args:
        is_able: Returns whether a client has test samples and is not at work.
        enough: Number of measurements that suffice.
        most: Number of devices that may be asked at a time.
        calls_within_s: Seconds within which a device calls that is there.
        timeout_s: Seconds that a device may take for it.
        clock: Seconds.
    """

    def __init__(
        self,
        is_able: Callable[[int], bool],
        enough: int,
        most: int,
        calls_within_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._is_able = is_able
        self._enough = enough
        self._most = most
        self._clock = clock
        self._called_by = clock() + calls_within_s
        self._deadline = clock() + timeout_s
        self._tickets = Tickets(clock)
        self._done_with: set[int] = set()
        """Clients that are asked no more."""
        self.measured: dict[int, Measurement] = {}
        """What devices measured, by client id."""

    def asks(self, client_id: int) -> bool:
        """Return whether a device that calls is to measure; one that was asked before begins anew."""
        asked = self._tickets.holders()
        return client_id in asked or (self._may_be_asked(client_id) and len(asked | self.measured.keys()) < self._most)

    def _may_be_asked(self, client_id: int) -> bool:
        return client_id not in self._done_with and self._is_able(client_id)

    def ticket(self, client_id: int) -> str:
        """Return the ticket of the model that a device is sent."""
        return self._tickets.issue(client_id)

    def awaits(self, client_id: int, ticket: object) -> bool:
        """Return whether an answer with this ticket is awaited."""
        return self._tickets.fits(client_id, ticket)

    def take(self, client_id: int, measurement: Measurement) -> None:
        """Take a measurement that is awaited."""
        self.measured[client_id] = measurement
        self.lose(client_id)

    def lose(self, client_id: int) -> None:
        """Ask nothing of a device any more."""
        self._done_with.add(client_id)
        self._tickets.void(client_id)

    @property
    def at_it(self) -> set[int]:
        """Clients that were asked and have not answered."""
        return self._tickets.holders()

    def is_over(self, present: Collection[int]) -> bool:
        """Return whether the measurement is to end, where these clients are ``present``."""
        if len(self.measured) >= self._enough or self._clock() >= self._deadline:
            return True
        if self.at_it:
            return False
        return self._clock() >= self._called_by or not any(map(self._may_be_asked, present))
