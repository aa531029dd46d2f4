"""A round's secure sum on its way between the server and silos: each step's messages, its answers, and its time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import SumCodec, SumExchange, SumMessage

LOGGER = logging.getLogger(__name__)
SUM = "dapper_sum"
"""Message type, in both directions, and key of what is told."""


class Summing:
    """Carries ``exchange`` to its end, and then calls ``ended`` with those who were lost, once.

    ``send`` says whether a client could be reached; ``allow`` gives the present step its time.
    """

    def __init__(
        self, exchange: SumExchange, codec: SumCodec, send: Callable[[int, bytes], bool], allow: Callable[[], None],
        ended: Callable[[Collection[int]], None],
    ) -> None:  # fmt: skip
        self._exchange = exchange
        self._codec = codec
        self._send = send
        self._allow = allow
        self._ended = ended

    def begin(self) -> None:
        """Tell everybody what the sum begins with."""
        self._tell(self._exchange.beginning())
        self._go_on()

    def hear(self, client_id: int, data: Any) -> bool:
        """Take what a client's process says; False where it answers nothing that is asked for now."""
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
        """A client's process is gone, or was started again and knows nothing of the sum."""
        if client_id in self._exchange.awaited:
            self._exchange.lose(client_id, reason)
            self._go_on()

    def time_is_over(self) -> None:
        """The present step's time has passed."""
        self._exchange.time_is_over()
        self._go_on()

    def _go_on(self) -> None:
        while self._exchange.can_go_on:
            self._tell(self._exchange.go_on())
        if self._exchange.is_over:
            self._ended(self._exchange.lost)

    def _tell(self, messages: Iterable[SumMessage]) -> None:
        self._allow()
        for message in messages:
            if not self._send(message.client_id, self._codec.encode(message)):
                self._exchange.lose(message.client_id, "it cannot be reached")
