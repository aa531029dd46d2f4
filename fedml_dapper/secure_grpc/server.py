"""The server's transport: receives messages that silos deliver, and keeps messages for silos until they fetch them."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
from pydantic import ValidationError

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, DapperError, DataError, ProtocolError, printable
from fedml_dapper.federation.wire.vocabulary import CONNECTION_IS_READY
from fedml_dapper.operations import AuditLog, RateLimiter
from fedml_dapper.operations.credentials import ADMIN, CredentialFiles
from fedml_dapper.operations.orders import STEER, Answer, Desk, Order, read_order
from fedml_dapper.operations.status import CallerFigures
from fedml_dapper.secure_grpc.authenticator import Authenticator, OpenCall, RefusedError
from fedml_dapper.secure_grpc.endpoint import (
    CUT_OFF,
    DELIVER,
    FETCH,
    FLOODS,
    OFFER,
    SERVER_OPTIONS,
    SERVICE,
    TRIAL_BYTES,
    TRY_DOWN,
    TRY_UP,
    WELCOME,
    Endpoint,
    Receipt,
)
from fedml_dapper.secure_grpc.going_on import Taker, frames_to_send, read_offer
from fedml_dapper.secure_grpc.handshakes import tls_of
from fedml_dapper.secure_grpc.link import MAX_FETCHES, Link, SiloBusyError
from fedml_dapper.secure_grpc.message import AnyMessage, Message
from fedml_dapper.secure_grpc.parcel import (
    MIB,
    Envelope,
    Numbering,
    Parcel,
    blank_frames,
    check_size,
    read_envelope,
)
from fedml_dapper.secure_grpc.parts import PartFolder, PartsError, read_arriving

LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
LAST_MESSAGES_SECONDS = 5.0
"""How long silos may take at the end to fetch their last messages."""
ORDER_SECONDS = 20.0
"""How long an operator's order waits for the server's loop."""
GRACE_SECONDS = 2.0
"""How long open calls may take to end when the server stops."""
REFUSALS_AT_ONCE = 100.0
REFUSALS_PER_SECOND = 1.0
"""Refusals that are logged, at once and per second; without a limit strangers could fill the disk."""
_COUNT_BYTES = 8


class SiloAwayError(DapperError):
    """A message cannot be sent, since its silo is not connected."""


class SecureServer(Endpoint):
    """Transport of a federation's server, or of an edge, which is the server to its silos.

    A message reaches the managers only if the call's certificate is that of the message's sender, the certificate may
    call now (:class:`Authenticator`), and the message is new. Certificates, list of members and tokens are read again
    when their files change.

    Args:
        config: Address, files and limits.
        credentials: Files of certificate, authorities and tokens.
        callers: Names in the certificates of those that may call, by rank.
        audit: Log of calls.
        desk: Takes operators' orders.
        clock: Seconds, for all limits per second.
        folder: Where a round's large messages of silos are kept, also for the next process; they travel whole if None.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(
        self,
        config: SecureGrpcConfig,
        credentials: CredentialFiles,
        callers: Mapping[int, str],
        audit: AuditLog,
        desk: Desk,
        clock: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
    ) -> None:
        super().__init__(rank=0)
        self._max_payload_bytes = config.max_message_mb * MIB
        self._parts = PartFolder(folder, 0 if folder is None else config.max_parts_mb * MIB)
        self._credentials = credentials
        self._name_of = config.name_of
        self._numbering = Numbering(self._max_payload_bytes)
        self._links = {rank: Link(rank, name, self._max_payload_bytes, clock) for rank, name in callers.items()}
        self._by_name = {link.name: link for link in self._links.values()}
        self._authenticator = Authenticator(
            credentials, config.members_file, self._by_name, audit, self._note_cut_off, clock
        )
        self._audit = audit
        self._desk = desk
        self._ordering = threading.Lock()
        self._looking = threading.Thread(target=self._keep_looking, name="authenticator", daemon=True)
        self._unable_to_look: Exception | None = None
        self._refused_strangers = 0
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._refusals_logged = RateLimiter(REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, clock)
        # for each silo a delivery, fetches and a trial of the line; one order; and spare ones for calls to be refused
        calls = (2 + MAX_FETCHES) * len(callers) + 5
        self._server = grpc.server(
            ThreadPoolExecutor(calls, thread_name_prefix="grpc"),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=4 * calls,
        )
        handlers = {
            OFFER: grpc.stream_unary_rpc_method_handler(self._take_offer),
            DELIVER: grpc.stream_unary_rpc_method_handler(self._deliver),
            FETCH: grpc.stream_stream_rpc_method_handler(self._fetch),
            TRY_UP: grpc.stream_unary_rpc_method_handler(self._try_up),
            TRY_DOWN: grpc.stream_stream_rpc_method_handler(self._try_down),
            STEER.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(self._steer),
        }  # all take streams: gRPC calls a handler of single requests only after it has read the request, unchecked
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = config.listen_address or config.server_address
        try:
            self._server.add_secure_port(address, tls_of(credentials))
        except RuntimeError as error:
            raise ConfigError(
                f"comm_args.dapper_grpc: cannot listen on {address}; is another process there, or is the address not"
                " this machine's? listen_address may differ from server_address"
            ) from error
        self._server.start()
        audit.record("started", address=address, authorities=credentials.current.authority_digest)

    def send_message(self, msg: AnyMessage) -> None:
        """FedML's hook: keep ``msg`` for its silo, which fetches it at once if it is connected.

        Raises:
            SiloAwayError: The silo is not connected.
            ProtocolError: The message cannot be encoded.
        """
        link = self._links[int(msg.get_receiver_id())]
        if not link.connected:
            raise SiloAwayError(f"{link.name} is not connected")
        link.put(self._numbering.parcel(msg))

    def handle_receive_message(self) -> None:
        """FedML's hook: pass every message to the managers, until :meth:`stop_receive_message`."""
        self._notify_connected()
        self._looking.start()
        while not self._stopped.is_set():
            if self._unable_to_look is not None:
                raise self._unable_to_look
            try:
                message = self._inbox.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            self._notify(message)
            del message  # the last reference here: its reserved memory is freed once the managers have dropped theirs

    def stop_receive_message(self) -> None:
        """FedML's hook: stop, once connected silos have fetched their last messages."""
        self._stopped.set()
        deadline = time.monotonic() + LAST_MESSAGES_SECONDS
        for link in self._links.values():
            link.close(max(0.0, deadline - time.monotonic()))
        self._server.stop(GRACE_SECONDS).wait()
        if self._looking.is_alive():
            self._looking.join(GRACE_SECONDS)
        self._authenticator.close()

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Delete the parts of silos' messages, but of those that are ``busy``."""
        self._parts.forget(busy)

    def _keep_looking(self) -> None:
        """Have the authenticator read changed files, in a thread of its own, so that a slow disk delays no message."""
        try:
            while not self._stopped.wait(_POLL_SECONDS):
                self._authenticator.look()
        except Exception as error:  # noqa: BLE001  # raised in the main thread, as nobody would be cut off any more
            self._unable_to_look = error

    def _note_cut_off(self, link: Link) -> None:
        """Tell the managers that a silo may no longer call, and drop its messages."""
        link.forget()
        self._inbox.put(Message(CUT_OFF, link.rank, 0))

    def _note_busy(self, context: grpc.ServicerContext) -> None:
        """Tell the managers of a silo that floods the server with calls, as its upload may not get through."""
        link = self._by_name.get(_common_name(context))
        if link is not None and link.is_flooding():
            self._inbox.put(Message(FLOODS, link.rank, 0))

    # Calls

    @contextmanager
    def _answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """End a call that fails with the gRPC status for its error."""
        try:
            yield
        except RefusedError as refusal:
            self._refuse(context, refusal)
        except ProtocolError as error:
            self._refuse(context, RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except (PartsError, DataError) as error:
            self._refuse(context, RefusedError(grpc.StatusCode.FAILED_PRECONDITION, str(error)))
        except SiloBusyError as error:
            self._note_busy(context)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))  # the silo tries again

    def _take_offer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Say how much of a message is there already, which a silo is about to deliver."""
        with self._answering(context), self._authenticator.admitted(context) as (link, _), link.delivering():
            offer = read_offer(_request(requests))
            check_size(offer.size, self._max_payload_bytes)
            held = self._parts.begin(link.rank, offer.whole)
        return Taker(held=held).model_dump_json(exclude_defaults=True).encode()

    def _deliver(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._answering(context), self._authenticator.admitted(context) as (link, call):
            try:
                self._receive(frames, link, call)
            except grpc.RpcError:
                LOGGER.warning("a message of %s ended early, dropped", link.name)
                raise
        return b""

    def _receive(self, frames: Iterator[bytes], link: Link, call: OpenCall) -> None:
        with link.delivering():
            envelope = read_envelope(frames, self._max_payload_bytes)
            _check_addressing(envelope, link, self._name_of)
            if link.arrivals.seen(envelope):
                LOGGER.info("%s sent message %d once more; it is here already", link.name, envelope.counter)
                return
            release = link.reserve(envelope)
            try:
                message = Parcel(envelope, read_arriving(frames, envelope, self._parts, link.rank)).message()
                link.arrivals.take(envelope)
            except BaseException:
                release()
                raise
            weakref.finalize(message, release)  # memory is free again when the managers have dropped the message
            self._authenticator.while_admitted(call, partial(self._inbox.put, message))

    def _fetch(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._answering(context), self._authenticator.admitted(context) as (link, _):
            yield from self._send(requests, link, context)

    def _send(self, requests: Iterator[bytes], link: Link, context: grpc.ServicerContext) -> Iterator[bytes]:
        with link.fetching() as call:
            context.add_callback(link.wake)
            receipt = _receipt(_request(requests))
            link.acknowledge(receipt)
            context.send_initial_metadata((WELCOME,))
            parcel = link.next_parcel(call, context.is_active)
            if parcel is not None:
                yield from frames_to_send(parcel, context.invocation_metadata())
                link.sent(parcel)
            elif context.is_active() and not link.is_newest(call):
                reason = f"a newer call of {link.name} has taken this one's place; start each silo once"
                raise RefusedError(grpc.StatusCode.ABORTED, reason)

    def _try_up(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Receive bytes by which a silo times its line, and drop them."""
        with self._answering(context), self._authenticator.admitted(context) as (link, _), link.trying():
            link.count_trial(TRIAL_BYTES)
            room = TRIAL_BYTES
            for frame in frames:
                room -= len(frame)
                if room < 0:
                    raise ProtocolError("a trial of the line takes too many bytes")
        return b""

    def _try_down(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Send the bytes that a silo asks for to time its line."""
        with self._answering(context), self._authenticator.admitted(context) as (link, _), link.trying():
            size = int.from_bytes(_request(requests)[:_COUNT_BYTES], "little")
            if size > TRIAL_BYTES:
                raise ProtocolError("a trial of the line asks for too many bytes")
            link.count_trial(size)
            yield from blank_frames(size)

    def _steer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Have an admin's order carried out, one at a time."""
        with self._answering(context), self._authenticator.admitted(context, is_admins=True) as (_, call):
            if not self._ordering.acquire(blocking=False):
                raise SiloBusyError("another order is being carried out")
            try:
                order = read_order(_request(requests))
                report = "" if order.act == "status" else self._carry_out(order, call)
            finally:
                self._ordering.release()
            yield Answer(said=report, status=self._desk.status()).model_dump_json().encode()

    def _carry_out(self, order: Order, call: OpenCall) -> str:
        fields = {"act": order.act, "silo": order.silo or 0, "fingerprint": call.certificate.fingerprint}
        future = self._desk.ask(order)
        try:
            report = _result_of(future, min(ORDER_SECONDS, max(0.0, call.context.time_remaining() - 1)))
        except DapperError as error:
            self._audit.record("order_refused", ADMIN, **fields, reason=str(error))
            call.context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        self._audit.record("order", ADMIN, **fields, said=report)
        return report

    def figures(self) -> tuple[Sequence[CallerFigures], int]:
        """Return the figures of each caller, and the number of refused calls of strangers."""
        return [link.figures for link in self._links.values()], self._refused_strangers

    def _refuse(self, context: grpc.ServicerContext, refusal: RefusedError) -> None:
        reason = str(refusal)  # a log record with the exception itself would keep the call alive, and its thread
        name = _common_name(context)
        link = self._by_name.get(name)
        if link is not None:
            link.count_refusal()
        elif name != ADMIN:
            name = "stranger"  # one name for all, as they could invent any number of names
            self._refused_strangers += 1
        self._audit.record("refused", name, peer=context.peer(), reason=reason)
        if self._refusals_logged.take():
            LOGGER.warning("refused a call of %s from %s: %s", _common_name(context), context.peer(), printable(reason))
        context.abort(refusal.status, reason)


def _result_of(future: Future[str], seconds: float) -> str:
    """Return an order's result, or raise its error.

    Raises :class:`RefusedError` where the order was not begun in time; it is cancelled then.
    """
    try:
        return future.result(seconds)
    except FutureTimeoutError:
        if future.cancel():
            reason = "the server is at work on a round's model, and heard nothing of the order; try again"
            raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from None
        return future.result()


def _check_addressing(envelope: Envelope, link: Link, name_of: Callable[[int], str]) -> None:
    if envelope.sender != link.rank:
        reason = f"{link.name} sent a message in the name of {name_of(envelope.sender)}"
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
    if envelope.receiver != 0:
        raise ProtocolError(f"a message for rank {envelope.receiver} was delivered to the server")
    if str(envelope.kind) == str(CONNECTION_IS_READY):
        raise ProtocolError("a message says that the server's own connection is ready")


def _request(requests: Iterator[bytes]) -> bytes:
    """Return the single request of a call by which a silo fetches something."""
    request = next(requests, None)
    if request is None:
        raise ProtocolError("a call ended without a request")
    return request


def _receipt(request: bytes) -> Receipt:
    try:
        return Receipt.model_validate_json(request)
    except ValidationError as error:
        raise RefusedError(
            grpc.StatusCode.INVALID_ARGUMENT, "a silo asks for messages with a malformed receipt"
        ) from error


def _common_name(context: grpc.ServicerContext) -> str:
    names = context.auth_context().get("x509_common_name", ())
    return printable(names[0].decode(errors="replace")) if len(names) == 1 else ""
