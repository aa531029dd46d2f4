"""Encoding of messages as frames: an envelope of JSON, then the payload's bytes in pieces.

    frame 1        Envelope, JSON, at most 64 KiB
    frames 2..n    the payload, 1 MiB each, the last one shorter; none where there is no payload

A payload above ``WHOLE_BYTES`` may come in parts (:mod:`.parts`): the envelope has its digest, and the frames begin
where the receiver's parts end. They grow from ``PART_BYTES`` on as long as the line holds, so that a line that breaks
costs no more than it had carried, and a good one carries as few frames as ever.

The one parameter that holds bytes is the payload; the others have to be plain values. A receiver refuses an envelope
that declares a payload above its limit, and frames beyond what the envelope declared, before it keeps them.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from fedml_dapper.errors import ProtocolError, printable
from fedml_dapper.secure_grpc.message import TRIPLE, AnyMessage, Message

MAX_ENVELOPE_BYTES = 1 << 16
FRAME_BYTES = 1 << 20
WHOLE_BYTES = 1 << 20
"""Largest payload that always travels whole: it begins anew where the line breaks."""
PART_BYTES = 1 << 16
"""Size of the first part of larger ones; each is twice the one before, up to ``FRAME_BYTES``."""
MIB = 1 << 20
MAX_SESSIONS = 1000
"""Most sessions of one peer that are remembered; each start of its process begins one."""

PlainValue = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr | None


class Envelope(BaseModel):
    """A message without its payload."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random number that the sender's process draws when it starts."""
    counter: int = Field(ge=1, lt=2**53, strict=True)
    """Number of the message, which grows within a session; a message that is sent again keeps it."""
    kind: StrictInt | StrictStr
    """Type of the message."""
    sender: int = Field(ge=0, strict=True)
    receiver: int = Field(ge=0, strict=True)
    params: dict[str, PlainValue] = {}
    payload_key: str | None = None
    """Name of the parameter that the payload is, if there is one."""
    payload_bytes: int = Field(default=0, ge=0, strict=True)
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the payload where it comes in parts; then it is in hexadecimal digits, and otherwise empty."""
    begins_at: int = Field(default=0, ge=0, strict=True)
    """How many bytes of the payload the receiver has already; the frames begin behind them."""


@dataclass(frozen=True, eq=False)
class Parcel:
    """A whole message in encoded form: envelope and payload."""

    envelope: Envelope
    payload: bytes = b""

    def frames(self) -> Iterator[bytes]:
        """Yield the message in pieces that gRPC can carry."""
        yield self.envelope.model_dump_json(exclude_defaults=True).encode()
        view = memoryview(self.payload)
        for start in range(0, len(view), FRAME_BYTES):
            yield bytes(view[start : start + FRAME_BYTES])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the payload, in hexadecimal digits."""
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def is_large(self) -> bool:
        """Whether the payload may travel in parts."""
        return len(self.payload) > WHOLE_BYTES

    def frames_from(self, begins_at: int) -> Iterator[bytes]:
        """Yield the message for a receiver that has the payload's first ``begins_at`` bytes."""
        update = {"digest": self.digest, "begins_at": begins_at}
        yield self.envelope.model_copy(update=update).model_dump_json(exclude_defaults=True).encode()
        view = memoryview(self.payload)
        start = begins_at
        size = PART_BYTES
        while start < len(view):
            yield bytes(view[start : start + size])
            start += size
            size = min(2 * size, FRAME_BYTES)

    def message(self) -> Message:
        """Return the message."""
        message = Message(self.envelope.kind, self.envelope.sender, self.envelope.receiver)
        for key, value in self.envelope.params.items():
            message.add_params(key, value)
        if self.envelope.payload_key is not None:
            message.add_params(self.envelope.payload_key, self.payload)
        return message


def blank_frames(size: int) -> Iterator[bytes]:
    """Yield frames of zeros, ``size`` bytes in all."""
    for start in range(0, size, FRAME_BYTES):
        yield bytes(min(FRAME_BYTES, size - start))


class Numbering:
    """Numbers the messages that this process sends; one that is sent again keeps its number."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._session = secrets.token_hex(16)
        self._counters = itertools.count(1)
        self._numbers: WeakKeyDictionary[AnyMessage, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def parcel(self, message: AnyMessage) -> Parcel:
        """Encode a message.

        Raises:
            ProtocolError: The message holds values that cannot be encoded, or a payload above the limit.
        """
        params = {key: value for key, value in message.get_params().items() if key not in TRIPLE}
        binary = [key for key, value in params.items() if isinstance(value, bytes)]
        if len(binary) > 1:
            raise ProtocolError(f"a message carries one payload of bytes; this one has {', '.join(binary)}")
        key = binary[0] if binary else None
        payload = params.pop(key) if key is not None else b""
        check_size(len(payload), self._max_payload_bytes)
        with self._lock:
            counter = self._numbers.get(message) or self._numbers.setdefault(message, next(self._counters))
        try:
            envelope = Envelope(
                session=self._session,
                counter=counter,
                kind=message.get_type(),
                sender=message.get_sender_id(),
                receiver=message.get_receiver_id(),
                params=params,
                payload_key=key,
                payload_bytes=len(payload),
            )
        except ValidationError as error:
            raise ProtocolError(f"a message carries plain values besides its payload: {_first(error)}") from error
        return Parcel(envelope, payload)


class Arrivals:
    """Remembers which messages have come from one peer, so that each one counts once."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def seen(self, envelope: Envelope) -> bool:
        """Return whether this message, or a later one of its session, has been taken already."""
        return envelope.counter <= self._last.get(envelope.session, 0)

    def take(self, envelope: Envelope) -> None:
        """Remember a message, and forget the session that began first where the peer has begun too many."""
        if envelope.session not in self._last and len(self._last) >= MAX_SESSIONS:
            del self._last[next(iter(self._last))]
        self._last[envelope.session] = envelope.counter


def read_envelope(frames: Iterator[bytes], max_payload_bytes: int) -> Envelope:
    """Read the first frame of a message.

    Raises:
        ProtocolError: The frame is no envelope, or declares a payload above the limit.
    """
    frame = next(frames, b"")
    if not 0 < len(frame) <= MAX_ENVELOPE_BYTES:
        raise ProtocolError(f"expected an envelope of 1 to {MAX_ENVELOPE_BYTES} bytes, found {len(frame)}")
    try:
        envelope = Envelope.model_validate_json(frame)
    except ValidationError as error:
        raise ProtocolError(f"malformed envelope: {_first(error)}") from error
    if not envelope.params.keys().isdisjoint({*TRIPLE, envelope.payload_key}):
        raise ProtocolError("malformed envelope: a parameter stands for what the envelope says elsewhere")
    if envelope.payload_key is None and envelope.payload_bytes:
        raise ProtocolError("malformed envelope: a payload without the name of its parameter")
    if envelope.payload_key in TRIPLE:
        raise ProtocolError(f"malformed envelope: `{envelope.payload_key}` cannot be a payload")
    if envelope.digest and not envelope.payload_bytes:
        raise ProtocolError("malformed envelope: a digest of no payload")
    if envelope.begins_at > (envelope.payload_bytes if envelope.digest else 0):
        raise ProtocolError("malformed envelope: it begins behind its payload's end")
    check_size(envelope.payload_bytes, max_payload_bytes)
    return envelope


def read_payload(frames: Iterator[bytes], envelope: Envelope) -> bytes:
    """Read the other frames of a message, and join them to its payload.

    Raises:
        ProtocolError: The frames are not what the envelope declared.
    """
    payload = Payload(envelope)
    for frame in frames:
        payload.add(frame)
    return payload.whole()


class Payload:
    """A payload that arrives frame by frame, none of which may go beyond what its ``envelope`` declared."""

    def __init__(self, envelope: Envelope) -> None:
        self._declared = envelope.payload_bytes
        self._buffer = io.BytesIO()  # getvalue() returns its memory without a copy

    def add(self, frame: bytes) -> None:
        """Keep one more frame.

        Raises:
            ProtocolError: It is not what was declared.
        """
        arrived = self._buffer.tell()
        if not self._declared:
            raise ProtocolError("frames follow a message that declared no payload")
        if not 0 < len(frame) <= min(FRAME_BYTES, self._declared - arrived):
            raise ProtocolError(f"a frame of {len(frame)} bytes after {arrived} of the {self._declared} declared")
        self._buffer.write(frame)

    def whole(self) -> bytes:
        """Return the payload, when all frames have come.

        Raises:
            ProtocolError: Some are missing.
        """
        arrived = self._buffer.tell()
        if arrived != self._declared:
            raise ProtocolError(f"the message ended after {arrived} of the {self._declared} bytes it declared")
        return self._buffer.getvalue()


def check_size(payload_bytes: int, limit: int) -> None:
    """Raise :class:`ProtocolError` for a payload above the limit, both in bytes."""
    if payload_bytes > limit:
        raise ProtocolError(
            f"a message of {math.ceil(payload_bytes / MIB)} MiB; comm_args.dapper_grpc.max_message_mb allows"
            f" {limit // MIB}"
        )


def _first(error: ValidationError) -> str:
    mistake = error.errors(include_url=False, include_input=False)[0]
    place = printable(".".join(str(step) for step in mistake["loc"]))  # of a stranger's own words
    return f"`{place}`: {mistake['msg']}" if place else mistake["msg"]
