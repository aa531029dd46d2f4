"""A silo's transport: delivers messages to the server and fetches messages from it; nobody can call a silo."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.addresses import split_address
from fedml_dapper.errors import ConfigError, DapperError, ProtocolError
from fedml_dapper.operations.credentials import CredentialFiles, Credentials
from fedml_dapper.operations.proxy import may_be_proxied, proxy_options
from fedml_dapper.secure_grpc.backoff import Backoff
from fedml_dapper.secure_grpc.endpoint import (
    CALL_SECONDS,
    DELIVER,
    EVEN_OPTIONS,
    FETCH,
    OFFER,
    SERVICE,
    SILO_OPTIONS,
    TOKEN_KEY,
    WELCOME,
    Endpoint,
    Receipt,
)
from fedml_dapper.secure_grpc.going_on import OFFER_SECONDS, THE_SERVER, frames_to_deliver, holds
from fedml_dapper.secure_grpc.message import AnyMessage
from fedml_dapper.secure_grpc.pacing import Pace
from fedml_dapper.secure_grpc.parcel import MIB, Arrivals, Numbering, Parcel, read_envelope
from fedml_dapper.secure_grpc.parts import PartFolder, PartsError, read_arriving

LOGGER = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 10.0
FAREWELL_SECONDS = 1.0
"""How long a silo waits at the end until the server knows that its last message was received."""
REMIND_SECONDS = 60.0
"""How often a silo logs that there still is no server."""
_FINAL: dict[grpc.StatusCode, type[DapperError]] = {
    grpc.StatusCode.UNAUTHENTICATED: ConfigError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
    grpc.StatusCode.ABORTED: DapperError,
}
"""Errors by the status of the server's answer, for those answers that would be the same at the next try."""


class SecureSilo(Endpoint):
    """Transport of one silo, which connects anew when the files of its credentials change.

    Args:
        config: The server's address, and limits.
        credentials: Files of certificate, authorities and token.
        rank: The silo's.
        give_up_after_s: For how many seconds the server may be away before the silo gives up.
        clock: Seconds, for that.
        folder: Where parts of a large message are kept, also for the next process; in memory until it is whole if None.
    """

    def __init__(
        self,
        config: SecureGrpcConfig,
        credentials: CredentialFiles,
        rank: int,
        give_up_after_s: float,
        clock: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
    ) -> None:
        super().__init__(rank)
        self._max_payload_bytes = config.max_message_mb * MIB
        self._config = config
        self._credentials = credentials
        self._server_address = config.server_address
        self._give_up_after_s = give_up_after_s
        self._clock = clock
        self._numbering = Numbering(self._max_payload_bytes)
        self._arrivals = Arrivals()
        self._parts = PartFolder(folder, self._max_payload_bytes)
        self._delivered = 0
        self._up = Pace(config.max_kib_per_s)
        self._down = Pace(config.max_kib_per_s)
        self._receipt = Receipt()
        self._lost: float | None = clock()
        """When the connection was lost; None while it stands."""
        self._reminded = float("-inf")
        self._was_connected = False
        self._connecting = threading.Lock()
        self._acknowledged = threading.Event()
        """Set while the server knows that all its messages were received."""
        self._acknowledged.set()
        self._connection = _Connection(config, credentials.current)

    def send_message(self, msg: AnyMessage) -> None:
        """FedML's hook: deliver ``msg``, and return when the server has it. One that is sent again arrives once.

        Raises:
            grpc.RpcError: The server was not reached; trying again may help.
            DapperError: The server refuses the message or this silo; trying again will not help.
        """
        parcel = self._numbering.parcel(msg)
        try:
            with self._connected() as connection:
                connection.deliver(parcel, self._up, self._note_delivered)
        except grpc.RpcError as error:
            self._raise_if_final(error)
            raise

    def handle_receive_message(self) -> None:
        """FedML's hook: fetch messages and pass them to the managers, until :meth:`stop_receive_message`.

        The managers are told that the connection is ready whenever the server is found, also after it was lost.

        Raises:
            DapperError: The server stays lost, or refuses this silo.
        """
        backoff = Backoff(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
        while not self._stopped.is_set():
            there = self._parts.latest(THE_SERVER)
            try:
                parcel = self._fetch()
            except (grpc.RpcError, ValueError) as error:  # gRPC raises ValueError on a closed channel
                self._acknowledged.set()  # nothing more will come on this call
                if self._stopped.is_set():  # closing the channel ends the call, and refuses another
                    return
                if isinstance(error, ValueError):
                    raise
                self._raise_if_final(error)
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:  # no message came within CALL_SECONDS
                    self._note_loss(error)
                    if self._parts.latest(THE_SERVER) != there:  # a bad line, by which a message comes part by part
                        backoff.begin_anew()
                    self._stopped.wait(backoff.pause())
            except PartsError as error:
                LOGGER.warning("a message of the server at %s begins anew: %s", self._server_address, error)
                self._stopped.wait(backoff.pause())
            else:
                backoff.begin_anew()
                if parcel is not None:
                    self._take(parcel)

    def stop_receive_message(self) -> None:
        """FedML's hook: stop, once the server knows that its last message was received.

        Otherwise it would send the message once more to the silo's next process.
        """
        if self._lost is None:
            self._acknowledged.wait(FAREWELL_SECONDS)
        self._stopped.set()
        with self._connecting:
            self._connection.close()

    def delivered(self) -> int:
        """Return how many bytes of the latest large message the server had when it was last asked."""
        return self._delivered

    def _note_delivered(self, size: int) -> None:
        self._delivered = size

    def forget(self) -> None:
        """Delete what the server sent last, when the run is over."""
        self._parts.forget()

    @contextmanager
    def _connected(self) -> Iterator[_Connection]:
        """Provide the connection, made anew where the files of the credentials have changed."""
        with self._connecting:
            if self._credentials.renew() and not self._stopped.is_set():
                self._connection.retire()
                self._connection = _Connection(self._config, self._credentials.current)
            connection = self._connection
            connection.begin_use()
        try:
            yield connection
        finally:
            connection.end_use()

    def _fetch(self) -> Parcel | None:
        """Fetch the next message; None if the server ended the call without one."""
        with self._connected() as connection:
            return self._read(connection.fetch(self._receipt, holds(self._parts)))

    def _read(self, call: Any) -> Parcel | None:
        if WELCOME in map(tuple, call.initial_metadata()):
            self._acknowledged.set()
            self._note_connection()
        frames = self._down.receiving(iter(call))
        first = next(frames, None)
        if first is None:
            return None
        frames = _chained(first, frames)
        try:
            envelope = read_envelope(frames, self._max_payload_bytes)
            return Parcel(envelope, read_arriving(frames, envelope, self._parts, THE_SERVER))
        finally:
            call.cancel()  # has an effect only where a frame was refused: otherwise the call is over

    def _take(self, parcel: Parcel) -> None:
        envelope = parcel.envelope
        if (envelope.sender, envelope.receiver) != (0, self._rank):
            raise ProtocolError(f"the server sent a message from {envelope.sender} to {envelope.receiver}")
        self._receipt = Receipt(session=envelope.session, counter=envelope.counter)
        self._acknowledged.clear()
        if not self._arrivals.seen(envelope):
            self._arrivals.take(envelope)
            self._notify(parcel.message())

    def _note_connection(self) -> None:
        if self._lost is not None:
            self._lost = None
            self._was_connected = True
            LOGGER.info("connected to the server at %s", self._server_address)
            self._notify_connected()

    def _note_loss(self, error: grpc.RpcError) -> None:
        now = self._clock()
        if self._lost is None:
            self._lost = self._reminded = now
            LOGGER.warning("lost the server at %s (%s); looking for it", self._server_address, error.details())
            return
        if not self._was_connected and not may_be_proxied(self._server_address, self._config.http_proxy):
            _check_name(self._server_address)
        if now - self._lost > self._give_up_after_s:
            raise DapperError(
                f"no server at {self._server_address} for {self._give_up_after_s:g} s, this silo gives up:"
                f" {error.details()}"
            ) from error
        if now - self._reminded > REMIND_SECONDS:
            self._reminded = now
            LOGGER.warning(
                "no server at %s for %.0f s (%s); looking for it for %.0f s in all",
                self._server_address,
                now - self._lost,
                error.details(),
                self._give_up_after_s,
            )

    def _raise_if_final(self, error: grpc.RpcError) -> None:
        raise_if_final(error, self._server_address)


class _Connection:
    """A channel with the credentials it was opened with, closed once it is retired and its last call is over."""

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials) -> None:
        self._metadata = metadata_of(credentials)
        self._channel = open_channel(config, credentials)
        self._offer = self._channel.stream_unary(f"/{SERVICE}/{OFFER}")
        self._deliver = self._channel.stream_unary(f"/{SERVICE}/{DELIVER}")
        self._fetch = self._channel.stream_stream(f"/{SERVICE}/{FETCH}")
        self._lock = threading.Lock()
        self._users = 0
        self._is_retired = False

    def deliver(self, parcel: Parcel, pace: Pace, note: Callable[[int], None]) -> None:
        """Deliver one message, and return when the server has it."""
        offer = partial(self._offer, timeout=OFFER_SECONDS, metadata=self._metadata)
        frames = pace.sending(frames_to_deliver(parcel, offer, note))
        self._deliver(frames, timeout=CALL_SECONDS, metadata=self._metadata)

    def fetch(self, receipt: Receipt, holds: tuple[str, str]) -> Any:
        """Begin the call by which the next message comes; ``holds`` says what is there of a large one."""
        request = iter([receipt.model_dump_json().encode()])
        return self._fetch(request, timeout=CALL_SECONDS, metadata=(*self._metadata, holds))

    def begin_use(self) -> None:
        with self._lock:
            self._users += 1

    def end_use(self) -> None:
        with self._lock:
            self._users -= 1
        self._close_if_done()

    def retire(self) -> None:
        """Close as soon as nobody uses it."""
        self._is_retired = True
        self._close_if_done()

    def close(self) -> None:
        """End calls at once."""
        self._channel.close()

    def _close_if_done(self) -> None:
        with self._lock:
            is_done = self._is_retired and self._users == 0
        if is_done:
            self._channel.close()


def open_channel(config: SecureGrpcConfig, credentials: Credentials) -> grpc.Channel:
    """Open a channel to the server, which connects when it is first used."""
    tls = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    even = () if config.max_kib_per_s is None else EVEN_OPTIONS
    proxied = proxy_options(config.server_address, config.http_proxy)
    return grpc.secure_channel(config.server_address, tls, options=(*SILO_OPTIONS, *proxied, *even))


def metadata_of(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call: the token, if there is one."""
    return () if credentials.token is None else ((TOKEN_KEY, credentials.token),)


def raise_if_final(error: grpc.RpcError, server_address: str) -> None:
    """Raise an error of ours where the server would answer the same at the next try; else do nothing.

    Raises:
        DapperError: The server refuses this silo, or cannot be trusted.
    """
    details = str(error.details())
    if "CERTIFICATE_VERIFY_FAILED" in details:  # its status is UNAVAILABLE, as if trying again could help
        raise ConfigError(
            f"the server at {server_address} shows a certificate that ca.pem does not vouch for, or one of another"
            f" name: {details}"
        ) from error
    kind = _FINAL.get(error.code())
    if kind is not None:
        raise kind(f"the server at {server_address} refuses this silo: {details}") from error


def _check_name(address: str) -> None:
    """Raise :class:`ConfigError` where no machine has the name in ``address``, as waiting would not help."""
    host = split_address(address)[0]
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:  # other errors may pass, e.g. a name server that is away
            raise ConfigError(
                f"comm_args.dapper_grpc.server_address: no machine has the name `{host}`; is it spelt right?"
            ) from error


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
