"""Messages between processes of a federation, with the methods of FedML's ``Message`` and without FedML."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

TRIPLE = ("msg_type", "sender", "receiver")
"""Names under which FedML keeps type, sender and receiver among a message's parameters."""


class AnyMessage(Protocol):
    """What transports need of a message: FedML's ``Message`` and :class:`Message` have it."""

    def get_type(self) -> Any: ...
    def get_sender_id(self) -> int: ...
    def get_receiver_id(self) -> int: ...
    def get_params(self) -> Mapping[str, Any]: ...
    def get(self, key: str) -> Any: ...
    def add_params(self, key: str, value: Any) -> None: ...


class Message:
    """A message of a type, from one rank to another, with named parameters."""

    def __init__(self, kind: Any, sender: int, receiver: int) -> None:
        self._params: dict[str, Any] = dict(zip(TRIPLE, (kind, sender, receiver), strict=True))

    def get_type(self) -> Any:
        return self._params["msg_type"]

    def get_sender_id(self) -> int:
        return int(self._params["sender"])

    def get_receiver_id(self) -> int:
        return int(self._params["receiver"])

    def get_params(self) -> Mapping[str, Any]:
        """Return the parameters by name; type, sender and receiver are among them."""
        return self._params

    def get(self, key: str) -> Any:
        """Return a parameter; None where the message has none of this name."""
        return self._params.get(key)

    def add_params(self, key: str, value: Any) -> None:
        """Add a parameter, or replace it."""
        self._params[key] = value


class Transport(Protocol):
    """What managers need of a transport, which is what FedML's communication managers have, and two hooks of ours."""

    def add_observer(self, observer: Any) -> None: ...
    def remove_observer(self, observer: Any) -> None: ...
    def send_message(self, msg: Any) -> None: ...
    def handle_receive_message(self) -> None: ...
    def stop_receive_message(self) -> None: ...
    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None: ...
    def delivered(self) -> int: ...


class Observer(Protocol):
    """Whoever hears of the messages that arrive, such as one of FedML's managers."""

    def receive_message(self, msg_type: Any, msg_params: Any) -> None: ...
