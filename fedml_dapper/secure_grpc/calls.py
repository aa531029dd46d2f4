"""Transport of a server of devices that call: one thread for all of them, and nothing held for who does not call.

A device says something in one call and is answered in the same call; between calls it has no connection. Calls are
authenticated as a silo's are: by certificate, list of members and token.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, DataError, ProtocolError, printable
from fedml_dapper.operations import AuditLog, RateLimiter
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.orders import STEER
from fedml_dapper.secure_grpc.authenticator import RefusedError
from fedml_dapper.secure_grpc.device_admission import DeviceAdmission, OpenDeviceCall
from fedml_dapper.secure_grpc.endpoint import CALL, OFFER, SERVER_OPTIONS, SERVICE
from fedml_dapper.secure_grpc.going_on import Taker, frames_to_send, read_offer
from fedml_dapper.secure_grpc.handshakes import tls_of
from fedml_dapper.secure_grpc.message import AnyMessage
from fedml_dapper.secure_grpc.order_calls import OrderCalls
from fedml_dapper.secure_grpc.parcel import MIB, Envelope, Numbering, Parcel, Payload, check_size, read_envelope
from fedml_dapper.secure_grpc.parts import PartFolder, PartsError
from fedml_dapper.secure_grpc.patience import Patience, TooSlowError, seconds_for
from fedml_dapper.secure_grpc.server import REFUSALS_AT_ONCE, REFUSALS_PER_SECOND

LOGGER = logging.getLogger(__name__)
CALLS_OF_A_DEVICE = 4
"""Calls of one device that may be under way at the same time, so that no device alone takes the places of all others.
A device makes one at a time; those of a device that lost its power are found dead only after a while."""
PAYLOADS_AT_ONCE = 64
"""Uploads that may be under way at the same time; further ones wait, so that memory stays bounded."""
MAX_CALLS = 4096
"""Calls that may be under way at the same time; further ones are refused, and their devices come back."""
GRACE_SECONDS = 2.0
_T = TypeVar("_T")


class CallServer:
    """Answers devices' calls, each by ``answer``, on the event loop that it is started on.

    Args:
        config: Address, files and limits.
        credentials: Files of certificate, authorities and tokens.
        num_devices: Certificates named ``silo-1`` up to this number may call.
        answer: Answers a message of the device of a rank, in no time; its :class:`ProtocolError` refuses the call.
        audit: Log of calls and changes.
        orders: Has operators' orders carried out; without it there are none.
        folder: Where a round's large uploads are kept, also for the next process; they travel whole if None.
        not_awaited: Says of the device of a rank why an upload of it would be of no use; None where it is awaited. One
            that is not, and not in parts, is answered unread: ``answer`` gets its message with an empty payload.
        cut_off: Called with the rank of a device that may no longer call.
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
        cut_off: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self._address = config.listen_address or config.server_address
        self._max_payload_bytes = config.max_message_mb * MIB
        self._credentials = credentials
        self._answer = answer
        self._audit = audit
        self._not_awaited = not_awaited
        self._parts = PartFolder(folder, 0 if folder is None else config.max_parts_mb * MIB)
        self._orders = orders
        self._numbering = Numbering(self._max_payload_bytes)
        self._under_way: Counter[int] = Counter()
        """Calls that are under way, by rank."""
        self._payloads = asyncio.Semaphore(PAYLOADS_AT_ONCE)
        self._arriving: dict[int, asyncio.Future[bytes]] = {}
        """The payload that each device is bringing, or waits to bring, by rank."""
        self._refusals_logged = RateLimiter(REFUSALS_AT_ONCE, REFUSALS_PER_SECOND)
        self._admission = DeviceAdmission(credentials, config.members_file, num_devices, audit, cut_off)
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
        self._admission.close()

    async def look_at_files(self) -> None:
        """Read changed credentials and members, for ever; run it beside the server."""
        await self._admission.keep_looking()

    @property
    def refused_strangers(self) -> int:
        """Number of calls with certificates that are no device's."""
        return self._admission.refused_strangers

    def forget_parts(self, busy: Collection[int] = ()) -> None:
        """Delete what has come of uploads, when their round is closed, but of devices that are ``busy`` (ranks)."""
        self._parts.forget(busy)

    # Calls

    async def _take_offer(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Say how much of an upload is there already, which a device is about to deliver."""

        async def take(call: OpenDeviceCall) -> bytes:
            offer = read_offer(await Patience().next(requests) or b"")
            check_size(offer.size, self._max_payload_bytes)
            refused = self._not_awaited(call.rank)
            held = None if refused is not None else await asyncio.to_thread(self._parts.begin, call.rank, offer.whole)
            return Taker(held=held, refused=refused).model_dump_json(exclude_defaults=True).encode()

        return await self._answered(context, take)

    async def _call(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async def converse(call: OpenDeviceCall) -> None:
            message = await self._read(frames, call.rank)
            self._admission.check(call)  # once more, as it may have been struck off the list meanwhile
            parcel = self._numbering.parcel(self._answer(call.rank, message))
            metadata = context.invocation_metadata() or ()
            for frame in await asyncio.to_thread(frames_to_send, parcel, metadata):
                await _in_time(context.write(frame), seconds_for(len(frame)))

        await self._answered(context, converse)

    async def _steer(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        assert self._orders is not None
        orders = self._orders

        async def carry_out() -> None:
            async with self._admission.admitted_for_orders(context):
                await context.write(await orders.answer(frames, context))

        await self._without_error(context, carry_out())

    async def _answered(
        self, context: grpc.aio.ServicerContext[bytes, bytes], work: Callable[[OpenDeviceCall], Awaitable[_T]]
    ) -> _T:
        """Do the work of a device's call, and return what comes of it; a refused call counts until it is over."""
        with ExitStack() as held:

            async def admitted() -> _T:
                async with self._admission.admitted(context) as call:
                    held.enter_context(self._counted(call.rank))
                    try:
                        return await work(call)
                    except TooSlowError as error:
                        reason = f"device {call.rank} {error}"
                        raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason) from error

            return await self._without_error(context, admitted())

    async def _without_error(
        self, context: grpc.aio.ServicerContext[bytes, bytes], work: Coroutine[object, object, _T]
    ) -> _T:
        """Return what comes of the work of a call, or end the call by the gRPC status for its error."""
        try:
            return await work
        except RefusedError as refusal:
            status, reason = refusal.status, str(refusal)
        except ProtocolError as error:
            status, reason = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except (PartsError, DataError) as error:
            status, reason = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        # Not within the block: who does not read hears of no refusal, and until then the error would hold a payload.
        who = self._admission.name_of_caller(context)
        await asyncio.to_thread(self._audit.record, "refused", who, peer=context.peer(), reason=reason)
        if self._refusals_logged.take():
            LOGGER.warning("refused a call of %s from %s: %s", who, context.peer(), printable(reason))
        await context.abort(status, reason)
        raise AssertionError("a call that was aborted goes on")

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

    # Messages

    async def _read(self, frames: AsyncIterator[bytes], rank: int) -> AnyMessage:
        """Read a device's message; raise :class:`ProtocolError` where it is malformed, or speaks for another."""
        first = await Patience().next(frames) or b""
        envelope = read_envelope(iter([first]), self._max_payload_bytes)
        if (envelope.sender, envelope.receiver) != (rank, 0):
            raise ProtocolError(f"device {rank} sent a message from {envelope.sender} to {envelope.receiver}")
        if envelope.payload_bytes and (reason := self._not_awaited(rank)) is not None:
            if envelope.digest:
                raise PartsError(reason)  # its device asks once more, and hears so before it sends anything
            return Parcel(envelope).message()
        collecting = self._collected(frames, envelope, rank)
        payload = await (self._alone(rank, collecting) if envelope.payload_bytes else collecting)
        return Parcel(envelope, payload).message()

    async def _alone(self, rank: int, payload: Coroutine[object, object, bytes]) -> bytes:
        """Return a payload, of which a device brings one at a time: that of a newer call takes an older one's place."""
        if (older := self._arriving.get(rank)) is not None:
            older.cancel()
        mine = self._arriving[rank] = asyncio.ensure_future(payload)
        try:
            return await mine
        except asyncio.CancelledError:
            if self._arriving.get(rank) is mine:
                raise
            raise PartsError("a newer call of this device has taken the place of this one") from None
        finally:
            if self._arriving.get(rank) is mine:
                del self._arriving[rank]

    async def _collected(self, frames: AsyncIterator[bytes], envelope: Envelope, rank: int) -> bytes:
        """Return the payload of a message, whose parts are kept on the disk."""
        async with self._payloads if envelope.payload_bytes else nullcontext():
            patience = Patience(envelope.payload_bytes - envelope.begins_at)
            if not envelope.digest:
                payload = Payload(envelope)
                while (frame := await patience.next(frames)) is not None:
                    payload.add(frame)
                return payload.whole()
            with self._parts.arriving(rank, envelope) as arriving:
                # written at once: a copy into the system's cache takes less than another thread
                while (frame := await patience.next(frames)) is not None:
                    arriving.add(frame)
                return await asyncio.to_thread(arriving.whole)


async def _in_time(work: Awaitable[_T], seconds: float) -> _T:
    """Return the result of ``work``; raise :class:`TooSlowError` where it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise TooSlowError("reads") from error
