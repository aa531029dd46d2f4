"""Tickets of the models that devices were sent: which answer belongs to which model, and since when it is awaited."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class _Ticket:
    number: str
    at: float
    """When it was issued, in seconds of the clock."""


class Tickets:
    """The last ticket of each device, by client id; ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._issued: dict[int, _Ticket] = {}

    def issue(self, client_id: int) -> str:
        """Return a new ticket for a model that the device is sent; its earlier one is void."""
        self._issued[client_id] = _Ticket(secrets.token_hex(8), self._clock())
        return self._issued[client_id].number

    def fits(self, client_id: int, ticket: object) -> bool:
        """Return whether an answer with this ``ticket`` is to the last model that the device was sent."""
        issued = self._issued.get(client_id)
        return issued is not None and issued.number == ticket

    def is_held_by(self, client_id: int) -> bool:
        """Return whether the device has a ticket."""
        return client_id in self._issued

    def holders(self) -> set[int]:
        """Return the clients that have a ticket."""
        return set(self._issued)

    def older_than(self, seconds: float) -> list[int]:
        """Return the clients whose ticket was issued longer ago than this."""
        since = self._clock() - seconds
        return [client_id for client_id, ticket in self._issued.items() if ticket.at < since]

    def void(self, client_id: int) -> None:
        """Make the device's ticket void, if it has one."""
        self._issued.pop(client_id, None)

    def void_all_but(self, client_ids: Collection[int]) -> None:
        """Make void the tickets of all other devices."""
        self._issued = {client_id: ticket for client_id, ticket in self._issued.items() if client_id in client_ids}
