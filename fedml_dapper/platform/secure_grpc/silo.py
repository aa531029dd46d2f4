"""A silo's transport: delivers to the server and fetches from it; nobody can call a silo."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import grpc
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.credentials import Credentials
from fedml_dapper.errors import ConfigError, DapperError, ProtocolError
from fedml_dapper.platform.secure_grpc.endpoint import (
    CALL_SECONDS,
    DELIVER,
    FETCH,
    SERVICE,
    SILO_OPTIONS,
    TOKEN_KEY,
    WELCOME,
    Endpoint,
    Receipt,
)
from fedml_dapper.platform.secure_grpc.parcel import MIB, Arrivals, Packing, Parcel, read_envelope, read_payload

LOGGER = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 10.0
REMIND_SECONDS = 60.0
"""How often a silo says that there still is no server."""
_FINAL: dict[grpc.StatusCode, type[DapperError]] = {
    grpc.StatusCode.UNAUTHENTICATED: ConfigError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
    grpc.StatusCode.ABORTED: DapperError,
}


class SecureSilo(Endpoint):
    """One silo's process. It goes on looking for a server that is away for ``patience_s`` seconds, then gives up."""

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials, rank: int, patience_s: float) -> None:
        super().__init__(rank)
        self._max_payload_bytes = config.max_message_mb * MIB
        self._server_address = config.server_address
        self._patience_s = patience_s
        self._packing = Packing(self._max_payload_bytes)
        self._arrivals = Arrivals()
        self._receipt = Receipt()
        self._lost: float | None = time.monotonic()
        self._reminded = float("-inf")
        self._was_connected = False
        self._metadata = metadata_of(credentials)
        self._channel = open_channel(config, credentials)
        self._deliver = self._channel.stream_unary(f"/{SERVICE}/{DELIVER}")
        self._fetch = self._channel.stream_stream(f"/{SERVICE}/{FETCH}")

    def send_message(self, msg: Message) -> None:
        """FedML's hook: deliver ``msg``; returns when the server has it. A repetition arrives once.

        Raises ``grpc.RpcError`` where trying again may help, and :class:`DapperError` where it will not.
        """
        parcel = self._packing.parcel(msg)
        try:
            self._deliver(parcel.frames(), timeout=CALL_SECONDS, metadata=self._metadata)
        except grpc.RpcError as error:
            self._raise_if_final(error)
            raise

    def handle_receive_message(self) -> None:
        """FedML's hook: fetch messages and tell the managers of each, until :meth:`stop_receive_message`.

        They are told that the connection is ready whenever the server has been found, so also after it was lost. Raises
        :class:`DapperError` when it stays lost, or refuses this silo.
        """
        pause = FIRST_PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                parcel = self._fetched()
            except (grpc.RpcError, ValueError) as error:
                if self._stopped.is_set():  # closing the channel ends the call, and refuses another
                    return
                if isinstance(error, ValueError):
                    raise
                self._raise_if_final(error)
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:  # that one only says that nothing came
                    self._note_loss(error)
                    self._stopped.wait(pause)
                    pause = min(2 * pause, LAST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                if parcel is not None:
                    self._take(parcel)

    def stop_receive_message(self) -> None:
        """FedML's hook: end at once."""
        self._stopped.set()
        self._channel.close()

    def _fetched(self) -> Parcel | None:
        """The next message; None if the server ended the call without one."""
        call = self._fetch(
            iter([self._receipt.model_dump_json().encode()]), timeout=CALL_SECONDS, metadata=self._metadata
        )
        if WELCOME in map(tuple, call.initial_metadata()):
            self._note_connection()
        frames: Iterator[bytes] = iter(call)
        first = next(frames, None)
        if first is None:
            return None
        frames = _chained(first, frames)
        try:
            envelope = read_envelope(frames, self._max_payload_bytes)
            return Parcel(envelope, read_payload(frames, envelope))
        finally:
            call.cancel()  # where a frame was refused; otherwise it is over

    def _take(self, parcel: Parcel) -> None:
        envelope = parcel.envelope
        if (envelope.sender, envelope.receiver) != (0, self._rank):
            raise ProtocolError(f"the server sent a message from {envelope.sender} to {envelope.receiver}")
        self._receipt = Receipt(session=envelope.session, counter=envelope.counter)
        if not self._arrivals.seen(envelope):
            self._arrivals.take(envelope)
            self._tell(parcel.message())

    def _note_connection(self) -> None:
        if self._lost is not None:
            self._lost, self._was_connected = None, True
            LOGGER.info("connected to the server at %s", self._server_address)
            self._tell_connected()

    def _note_loss(self, error: grpc.RpcError) -> None:
        now = time.monotonic()
        if self._lost is None:
            self._lost = self._reminded = now
            LOGGER.warning("lost the server at %s (%s); looking for it", self._server_address, error.details())
            return
        if not self._was_connected:
            _check_name(self._server_address)
        if now - self._lost > self._patience_s:
            raise DapperError(
                f"no server at {self._server_address} for {self._patience_s:g} s, this silo gives up: {error.details()}"
            ) from error
        if now - self._reminded > REMIND_SECONDS:
            self._reminded = now
            LOGGER.warning(
                "no server at %s for %.0f s (%s); looking for it for %.0f s in all",
                self._server_address, now - self._lost, error.details(), self._patience_s,
            )  # fmt: skip

    def _raise_if_final(self, error: grpc.RpcError) -> None:
        raise_if_final(error, self._server_address)


def open_channel(config: SecureGrpcConfig, credentials: Credentials) -> grpc.Channel:
    """A connection to the server, which is made when it is first needed."""
    tls = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    return grpc.secure_channel(config.server_address, tls, options=SILO_OPTIONS)


def metadata_of(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """What goes with every call."""
    return () if credentials.token is None else ((TOKEN_KEY, credentials.token),)


def raise_if_final(error: grpc.RpcError, server_address: str) -> None:
    """Raises :class:`DapperError` for what the server will answer again, however often it is asked."""
    details = str(error.details())
    if "CERTIFICATE_VERIFY_FAILED" in details:  # gRPC calls it UNAVAILABLE, as if it might pass
        raise ConfigError(
            f"the server at {server_address} shows a certificate that ca.pem does not vouch for, or one of another"
            f" name: {details}"
        ) from error
    kind = _FINAL.get(error.code())
    if kind is not None:
        raise kind(f"the server at {server_address} refuses this silo: {details}") from error


def _check_name(address: str) -> None:
    """Raises :class:`ConfigError` where no machine has the name in ``address``: it will not have it later either."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:  # others pass, such as that of a name server that is away
            raise ConfigError(
                f"comm_args.dapper_grpc.server_address: no machine has the name `{host}`; is it spelt right?"
            ) from error


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
