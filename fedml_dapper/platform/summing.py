"""Messages of a round's secure sum between the server and silos: sends each step's, and takes the answers in time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import SumCodec, SumExchange, SumMessage

LOGGER = logging.getLogger(__name__)


class Summing:
    """Runs a secure sum to its end.

    Args:
        exchange: The sum's steps.
        codec: Encodes and decodes messages.
        send: Sends a message to a client, and returns whether the client could be reached.
        allow: Called when a step begins, to set its deadline.
        ended: Called once at the end, with the clients that were lost.
    """

    def __init__(
        self,
        exchange: SumExchange,
        codec: SumCodec,
        send: Callable[[int, bytes], bool],
        allow: Callable[[], None],
        ended: Callable[[Collection[int]], None],
    ) -> None:
        self._exchange = exchange
        self._codec = codec
        self._send = send
        self._allow = allow
        self._ended = ended

    def begin(self) -> None:
        """Send the first messages."""
        self._send_all(self._exchange.beginning())
        self._go_on()

    def take_answer(self, client_id: int, data: Any) -> bool:
        """Take a client's answer; return whether it was awaited."""
        if client_id not in self._exchange.awaited:
            return False
        try:
            message = self._codec.decode(data if isinstance(data, bytes) else b"")
        except ProtocolError as error:
            self._exchange.lose(client_id, str(error))
        else:
            if message.client_id != client_id or not self._exchange.is_about(message):
                return False
            self._exchange.take(message)
        self._go_on()
        return True

    def lose(self, client_id: int, reason: str) -> None:
        """Go on without a client, whose process is gone or was started again."""
        if client_id in self._exchange.awaited:
            self._exchange.lose(client_id, reason)
            self._go_on()

    def time_is_over(self) -> None:
        """Go on without the clients that have not answered in the present step."""
        self._exchange.time_is_over()
        self._go_on()

    def _go_on(self) -> None:
        while self._exchange.can_go_on:
            self._send_all(self._exchange.go_on())
        if self._exchange.is_over:
            self._ended(self._exchange.lost)

    def _send_all(self, messages: Iterable[SumMessage]) -> None:
        self._allow()
        for message in messages:
            if not self._send(message.client_id, self._codec.encode(message)):
                self._exchange.lose(message.client_id, "it cannot be reached")
