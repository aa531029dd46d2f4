"""What server and silo share: FedML's interface towards the managers, and gRPC's options."""

from __future__ import annotations

import threading
from collections.abc import Collection

from fedml.core.distributed.communication.base_com_manager import BaseCommunicationManager
from fedml.core.distributed.communication.constants import CommunicationConstants
from fedml.core.distributed.communication.message import Message
from fedml.core.distributed.communication.observer import Observer
from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper.platform.secure_grpc.parcel import FRAME_BYTES, MAX_ENVELOPE_BYTES

SERVICE = "fedml_dapper.Federation"
DELIVER = "Deliver"
FETCH = "Fetch"
TRY_UP = "TryUp"
TRY_DOWN = "TryDown"
"""Calls that carry nothing but bytes, by which a silo times its line."""
TRIAL_BYTES = 1 << 24
"""At most, of one such call."""
CALL_SECONDS = 3600.0
"""Deadline of every call: for a transfer more than it takes, for a silo that waits a reason to call again."""
_KEEPALIVE_SECONDS = 20
OPTIONS = (
    ("grpc.max_receive_message_length", FRAME_BYTES + MAX_ENVELOPE_BYTES),  # of one frame, not of a message
    ("grpc.keepalive_time_ms", 1000 * _KEEPALIVE_SECONDS),  # finds peers that vanished, keeps a NAT's way open
    ("grpc.keepalive_timeout_ms", 1000 * _KEEPALIVE_SECONDS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small frame must not unfold into a large one
)
SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500 * _KEEPALIVE_SECONDS),
    ("grpc.http2.max_ping_strikes", 100),  # between two messages: a busy machine's pings come in bunches
    ("grpc.max_concurrent_streams", 8),  # of one connection
    ("grpc.max_connection_age_ms", 600_000),  # a new handshake looks at expiry and authorities again; calls go on
)
SILO_OPTIONS = (
    *OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)
TOKEN_KEY = "authorization"
WELCOME = ("fedml-dapper", "welcome")
"""Metadata by which the server says at once that a silo's call to fetch is taken, however long it will wait."""


CUT_OFF = ("dapper_cut_off",)
"""Type of the message by which a server's transport says that its sender may no longer call: a tuple, which no message
on the wire can have."""


FLOODS = ("dapper_floods",)
"""Type of the message by which it says that its sender calls far more often than it may."""


class Receipt(BaseModel):
    """What a silo says when it asks for the next message: which one it got last, of which session of the server's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str = Field(default="", max_length=32)
    counter: int = Field(default=0, ge=0, strict=True)


class Endpoint(BaseCommunicationManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's communication manager, as far as it is the same on both sides."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._observers: list[Observer] = []
        self._stopped = threading.Event()

    def add_observer(self, observer: Observer) -> None:
        """FedML's hook: from now on tell this manager of every message."""
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """FedML's hook."""
        self._observers.remove(observer)

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Nothing is stored."""

    def _tell(self, message: Message) -> None:
        for observer in self._observers:
            observer.receive_message(message.get_type(), message)

    def _tell_connected(self) -> None:
        self._tell(Message(CommunicationConstants.MSG_TYPE_CONNECTION_IS_READY, self._rank, self._rank))
