"""Transport of a server of devices that call: one thread for all of them, and nothing held for who does not call.

A device says something in one call and is answered in the same call; between calls it has no connection. Calls are
authenticated as a silo's are: by certificate, list of members and token.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, DataError, ProtocolError, printable
from fedml_dapper.operations import AuditLog, Membership, MembershipFile, RateLimiter
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.orders import STEER
from fedml_dapper.secure_grpc.authenticator import (
    LOOK_SECONDS,
    RefusedError,
    check_admission,
    shown_certificate,
    shown_token,
)
from fedml_dapper.secure_grpc.endpoint import CALL, OFFER, SERVER_OPTIONS, SERVICE
from fedml_dapper.secure_grpc.going_on import Taker, frames_to_send, read_offer
from fedml_dapper.secure_grpc.handshakes import tls_of
from fedml_dapper.secure_grpc.message import AnyMessage
from fedml_dapper.secure_grpc.order_calls import OrderCalls
from fedml_dapper.secure_grpc.parcel import MIB, Envelope, Numbering, Parcel, Payload, check_size, read_envelope
from fedml_dapper.secure_grpc.parts import PartFolder, PartsError
from fedml_dapper.secure_grpc.server import REFUSALS_AT_ONCE, REFUSALS_PER_SECOND

LOGGER = logging.getLogger(__name__)
CALLS_AT_ONCE = 20.0
CALLS_PER_SECOND = 1.0
"""Calls that one device may make, at once and per second."""
CALLS_OF_A_DEVICE = 4
"""Calls of one device that may be under way at the same time, so that no device alone takes the places of all others.
A device makes one at a time; those of a device that lost its power are found dead only after a while."""
PAYLOADS_AT_ONCE = 64
"""Uploads that may be under way at the same time; further ones wait, so that memory stays bounded."""
MAX_CALLS = 4096
"""Calls that may be under way at the same time; further ones are refused, and their devices come back."""
SLOWEST_SECONDS = 30.0
SLOWEST_BYTES_PER_SECOND = 4000.0
"""Time that an upload may take, and speed below which it is cut off: slow ones would keep others waiting."""
GRACE_SECONDS = 2.0
_T = TypeVar("_T")


class CallServer:
    """Answers devices' calls, each by ``answer``, on the event loop that it is started on.

    Args:
        config: Address, files and limits.
        credentials: Files of certificate, authorities and tokens.
        num_devices: Certificates named ``silo-1`` up to this number may call.
        answer: Answers a message of the device of a rank, in no time; its :class:`ProtocolError` refuses the call.
        audit: Log of refusals.
        orders: Has operators' orders carried out; without it there are none.
        folder: Where a round's large uploads are kept, also for the next process; they travel whole if None.
        not_awaited: Says of the device of a rank why an upload of it would be of no use; None where it is awaited.
    """

    def __init__(
        self,
        config: SecureGrpcConfig,
        credentials: CredentialFiles,
        num_devices: int,
        answer: Callable[[int, AnyMessage], AnyMessage],
        audit: AuditLog,
        orders: OrderCalls | None = None,
        folder: Path | None = None,
        not_awaited: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self._address = config.listen_address or config.server_address
        self._max_payload_bytes = config.max_message_mb * MIB
        self._credentials = credentials
        self._num_devices = num_devices
        self._answer = answer
        self._audit = audit
        self._not_awaited = not_awaited
        self._parts = PartFolder(folder, 0 if folder is None else config.max_parts_mb * MIB)
        self._orders = orders
        self.refused_strangers = 0
        """Calls with certificates that are no device's."""
        self._numbering = Numbering(self._max_payload_bytes)
        self._limiters: dict[int, RateLimiter] = {}
        self._under_way: Counter[int] = Counter()
        """Calls that are under way, by rank."""
        self._payloads = asyncio.Semaphore(PAYLOADS_AT_ONCE)
        self._refusals_logged = RateLimiter(REFUSALS_AT_ONCE, REFUSALS_PER_SECOND)
        self._members_file = None if config.members_file is None else MembershipFile(config.members_file)
        self._members: Membership | None = None if self._members_file is None else self._members_file.read()
        self._server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        handlers = {
            OFFER: grpc.stream_unary_rpc_method_handler(self._take_offer),
            CALL: grpc.stream_stream_rpc_method_handler(self._call),
        }
        if orders is not None:
            handlers[STEER.rpartition("/")[2]] = grpc.stream_stream_rpc_method_handler(self._steer)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        try:
            self._server.add_secure_port(self._address, tls_of(self._credentials))
        except RuntimeError as error:
            raise ConfigError(
                f"comm_args.dapper_grpc: cannot listen on {self._address}; is another process there, or is the address"
                " not this machine's? listen_address may differ from server_address"
            ) from error
        await self._server.start()
        self._audit.record("started", address=self._address, authorities=self._credentials.current.authority_digest)

    async def stop(self) -> None:
        """End open calls, after a moment in which they may end by themselves."""
        await self._server.stop(GRACE_SECONDS)

    async def look_at_files(self) -> None:
        """Read changed credentials and members, for ever; run it beside the server."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self._credentials.renew)
            if self._members_file is not None:
                self._members = await asyncio.to_thread(self._members_file.read)

    def forget_parts(self, busy: Collection[int] = ()) -> None:
        """Delete what has come of uploads, when their round is closed, but of devices that are ``busy`` (ranks)."""
        self._parts.forget(busy)

    async def _take_offer(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Say how much of an upload is there already, which a device is about to deliver."""
        async with self._answering(context):
            rank = self._admitted(context)
            with self._counted(rank):
                offer = read_offer(await self._in_time(_first(requests), SLOWEST_SECONDS, rank))
                check_size(offer.size, self._max_payload_bytes)
                refused = self._not_awaited(rank)
                held = None if refused is not None else await asyncio.to_thread(self._parts.begin, rank, offer.whole)
        return Taker(held=held, refused=refused).model_dump_json(exclude_defaults=True).encode()

    async def _call(
        self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        async with self._answering(context):
            rank = self._admitted(context)
            with self._counted(rank):
                message = await self._read(frames, rank)
                self._check_admitted(context)  # once more, as it may have been struck off the list meanwhile
                parcel = self._numbering.parcel(self._answer(rank, message))
                metadata = context.invocation_metadata() or ()
                for frame in await asyncio.to_thread(frames_to_send, parcel, metadata):
                    yield frame

    @asynccontextmanager
    async def _answering(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[None]:
        """End a call that fails with the gRPC status for its error."""
        try:
            yield
        except RefusedError as refusal:
            await self._refuse(context, refusal.status, str(refusal))
        except ProtocolError as error:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (PartsError, DataError) as error:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def _steer(
        self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        assert self._orders is not None
        async with self._answering(context):
            self._check_admitted(context)
            yield await self._orders.answer(frames, context)

    def _admitted(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> int:
        """Return the rank of the device that calls; raise :class:`RefusedError` where it may not call now."""
        certificate = shown_certificate(context)
        kind, _, number = certificate.name.partition("-")
        is_number = number.isascii() and number.isdecimal() and number == str(int(number))
        if kind != "silo" or not is_number or not 1 <= int(number) <= self._num_devices:
            self.refused_strangers += 1
            name = printable(certificate.name)
            reason = f"the certificate of `{name}` is no device's of this federation of {self._num_devices}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        rank = int(number)
        self._check_admitted(context)
        limiter = self._limiters.setdefault(rank, RateLimiter(CALLS_AT_ONCE, CALLS_PER_SECOND))
        if not limiter.take():
            reason = f"{certificate.name} calls more than {CALLS_PER_SECOND:g} times a second"
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        return rank

    def _check_admitted(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Raise :class:`RefusedError` where the certificate or token of a call does not count now."""
        certificate = shown_certificate(context)
        tokens = self._credentials.current.tokens
        check_admission(certificate.name, certificate, shown_token(context), self._members, tokens)

    @contextmanager
    def _counted(self, rank: int) -> Iterator[None]:
        """Count a call of the device as under way; raise :class:`RefusedError` where it has too many."""
        if self._under_way[rank] >= CALLS_OF_A_DEVICE:
            reason = f"silo-{rank} has {CALLS_OF_A_DEVICE} calls under way already"
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._under_way[rank] += 1
        try:
            yield
        finally:
            self._under_way[rank] -= 1
            if not self._under_way[rank]:
                del self._under_way[rank]

    async def _read(self, frames: AsyncIterator[bytes], rank: int) -> AnyMessage:
        """Read a device's message; raise :class:`ProtocolError` where it is malformed, or speaks for another."""
        first = await self._in_time(_first(frames), SLOWEST_SECONDS, rank)
        envelope = read_envelope(iter([first]), self._max_payload_bytes)
        if (envelope.sender, envelope.receiver) != (rank, 0):
            raise ProtocolError(f"device {rank} sent a message from {envelope.sender} to {envelope.receiver}")
        if envelope.digest and (reason := self._not_awaited(rank)) is not None:
            raise PartsError(reason)
        allowed_s = SLOWEST_SECONDS + (envelope.payload_bytes - envelope.begins_at) / SLOWEST_BYTES_PER_SECOND
        async with self._payloads if envelope.payload_bytes else nullcontext():
            payload = await self._in_time(self._collected(frames, envelope, rank), allowed_s, rank)
        return Parcel(envelope, payload).message()

    async def _collected(self, frames: AsyncIterator[bytes], envelope: Envelope, rank: int) -> bytes:
        """Return the payload of a message, whose parts are kept on the disk."""
        if not envelope.digest:
            payload = Payload(envelope)
            async for frame in frames:
                payload.add(frame)
            return payload.whole()
        with self._parts.arriving(rank, envelope) as arriving:
            async for frame in frames:  # written at once: a copy into the system's cache takes less than another thread
                arriving.add(frame)
            return await asyncio.to_thread(arriving.whole)

    async def _in_time(self, work: Awaitable[_T], seconds: float, rank: int) -> _T:
        """Return the result of ``work``; raise :class:`RefusedError` where a device keeps it waiting."""
        try:
            return await asyncio.wait_for(work, seconds)
        except asyncio.TimeoutError as error:
            reason = f"device {rank} delivers more slowly than {SLOWEST_BYTES_PER_SECOND / 1000:g} kB a second"
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason) from error

    async def _refuse(
        self, context: grpc.aio.ServicerContext[bytes, bytes], status: grpc.StatusCode, reason: str
    ) -> None:
        if self._refusals_logged.take():
            LOGGER.warning("refused a call: %s", reason)
            self._audit.record("refused", reason=reason)
        await context.abort(status, reason)


async def _first(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames, b"")
