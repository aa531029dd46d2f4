"""Measurement of one model by silos: sends it, and collects answers until all have come or time is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fedml_dapper.errors import ProtocolError

LOGGER = logging.getLogger(__name__)


class Measuring:
    """Measurement of one model by several clients.

    Args:
        send: Sends the model to a client and returns the ticket that has to come back; None where the client cannot be
            reached.
        note: Takes a client's answer, and raises :class:`ProtocolError` where that is no measurement.
        ended: Called once, when no answer is awaited any more.
    """

    def __init__(
        self, send: Callable[[int], str | None], note: Callable[[int, Any], None], ended: Callable[[], None]
    ) -> None:
        self._send = send
        self._note = note
        self._ended = ended
        self._tickets: dict[int, str] = {}

    @property
    def awaited(self) -> Collection[int]:
        """Clients that have not answered."""
        return self._tickets.keys()

    def begin(self, client_ids: Iterable[int]) -> bool:
        """Send the model to these clients; return whether any of them could be reached."""
        for client_id in client_ids:
            self._send_to(client_id)
        return bool(self._tickets)

    def take_answer(self, client_id: int, ticket: Any, answer: Any) -> bool:
        """Take a client's answer; return whether it was awaited."""
        if self._tickets.get(client_id) != ticket or ticket is None:
            return False
        del self._tickets[client_id]
        try:
            self._note(client_id, answer)
        except ProtocolError as error:
            LOGGER.warning("client %d: %s", client_id, error)
        self._end_if_done()
        return True

    def send_again(self, client_id: int) -> None:
        """Send the model once more to a client that was started again before it answered."""
        if client_id in self._tickets:
            self._send_to(client_id)
            self._end_if_done()

    def lose(self, client_id: int) -> None:
        """Go on without the answer of a client."""
        if self._tickets.pop(client_id, None) is not None:
            self._end_if_done()

    def time_is_over(self) -> None:
        """Go on without the clients that have not answered."""
        self._tickets = {}
        self._ended()

    def _send_to(self, client_id: int) -> None:
        ticket = self._send(client_id)
        if ticket is None:
            self._tickets.pop(client_id, None)
        else:
            self._tickets[client_id] = ticket

    def _end_if_done(self) -> None:
        if not self._tickets:
            self._ended()
