"""Common parts of server and silo: FedML's interface to the managers, names of calls, and gRPC's options."""

from __future__ import annotations

import threading
from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper.federation.wire.vocabulary import CONNECTION_IS_READY
from fedml_dapper.secure_grpc.message import Message, Observer
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES, MAX_ENVELOPE_BYTES

SERVICE = "fedml_dapper.Federation"
DELIVER = "Deliver"
FETCH = "Fetch"
OFFER = "Offer"
"""Name of the call by which a silo or device asks how much of a large payload is there already."""
CALL = "Call"
"""Name of the call by which a device says something and is answered at once."""
TRY_UP = "TryUp"
TRY_DOWN = "TryDown"
"""Names of the calls by which a silo times its line, up and down; they carry meaningless bytes."""
TRIAL_BYTES = 1 << 24
"""Most bytes of one call that times the line."""
CALL_SECONDS = 3600.0
"""Deadline of every call: longer than any transfer takes, and after it a silo that waits for messages calls anew."""
_KEEPALIVE_SECONDS = 20
OPTIONS = (
    ("grpc.max_receive_message_length", FRAME_BYTES + MAX_ENVELOPE_BYTES),  # a frame is a message to gRPC
    ("grpc.keepalive_time_ms", 1000 * _KEEPALIVE_SECONDS),  # finds peers that vanished, keeps a NAT's entry alive
    ("grpc.keepalive_timeout_ms", 1000 * _KEEPALIVE_SECONDS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small frame must not unfold into a large one
)
SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500 * _KEEPALIVE_SECONDS),
    ("grpc.http2.max_ping_strikes", 100),  # a busy machine's pings come in bunches
    ("grpc.max_concurrent_streams", 8),  # per connection
    ("grpc.max_connection_age_ms", 600_000),  # a new handshake checks expiry and authorities again; calls go on
)
SILO_OPTIONS = (
    *OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)
EVEN_OPTIONS = (("grpc.http2.bdp_probe", 0),)
"""With a limit of speed: gRPC reads no more ahead than one frame, or a whole model could come at once."""
TOKEN_KEY = "authorization"
WELCOME = ("fedml-dapper", "welcome")
"""Metadata that the server sends at once when it accepts a silo's call to fetch, which may then wait for long."""

CUT_OFF = ("dapper_cut_off",)
"""Type of a message by which the server's transport tells its manager that a silo may no longer call. It is a tuple,
which no message from outside can have as its type."""

FLOODS = ("dapper_floods",)
"""Type of a message by which the server's transport tells its manager that a silo calls far more often than it may."""


class Receipt(BaseModel):
    """Request of a silo for the next message, which names the last message that it got and the server's session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str = Field(default="", max_length=32)
    counter: int = Field(default=0, ge=0, strict=True)


class Endpoint:
    """What server and silo have in common; its hooks are those of FedML's communication managers."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._observers: list[Observer] = []
        self._stopped = threading.Event()

    def add_observer(self, observer: Observer) -> None:
        """FedML's hook: pass every message to this manager from now on."""
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """FedML's hook: pass no more messages to this manager."""
        self._observers.remove(observer)

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Do nothing: this transport stores no messages."""

    def delivered(self) -> int:
        """Return how many bytes of the latest message are known to have arrived before all of it has; 0 here."""
        return 0

    def _notify(self, message: Message) -> None:
        for observer in self._observers:
            observer.receive_message(message.get_type(), message)

    def _notify_connected(self) -> None:
        self._notify(Message(CONNECTION_IS_READY, self._rank, self._rank))
