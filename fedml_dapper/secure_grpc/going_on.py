"""How the two ends agree where a large payload goes on: asked before an upload, said with the call for a download.

Before an upload the sender offers it, by size and digest, and is told how many bytes of it are there. With a call that
may be answered by a download, the receiver says what it has of the payload that came last. A peer of an older version
knows neither, and payloads travel whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedml_dapper.errors import DapperError, ProtocolError
from fedml_dapper.secure_grpc.parcel import Parcel
from fedml_dapper.secure_grpc.parts import PartFolder, Whole

THE_SERVER = 0
"""Sender of all that a silo or a device receives."""
HOLDS_KEY = "fedml-dapper-holds"
"""Key of a call's metadata that say what the caller has of the payload that came last: nothing, or DIGEST:BYTES."""
OFFER_SECONDS = 60.0
"""Deadline of an offer."""
_HOLDS = re.compile(r"([0-9a-f]{64}):(0|[1-9]\d{0,15})")


class NotAwaitedError(DapperError):
    """The server does not await this payload; its reason is the message."""


class Offer(BaseModel):
    """A payload that its sender is about to deliver."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=1, lt=10**16, strict=True)

    @property
    def whole(self) -> Whole:
        return Whole(self.digest, self.size)


class Taker(BaseModel):
    """Answer to an offer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    held: int | None = Field(default=None, ge=0, strict=True)
    """How many bytes of the payload are there; None where no parts are kept, and it is to be sent whole."""
    refused: str | None = None
    """Why the payload is of no use, so that its sender need not deliver it."""


def read_offer(request: bytes) -> Offer:
    """Decode an offer; raise :class:`ProtocolError` where it is none."""
    try:
        return Offer.model_validate_json(request)
    except ValidationError as error:
        raise ProtocolError("malformed offer of a payload") from error


def frames_to_deliver(
    parcel: Parcel, offer: Callable[[Iterator[bytes]], bytes], note: Callable[[int], None]
) -> Iterator[bytes]:
    """Return the frames of ``parcel`` that its receiver has not.

    Args:
        parcel: What is to be delivered.
        offer: Calls the receiver with an :class:`Offer`, and returns its answer.
        note: Is told how many bytes of a large payload are there already.

    Raises:
        NotAwaitedError: It need not be delivered.
        ProtocolError: The answer is none.
        grpc.RpcError: The receiver was not reached, or refuses this process.
    """
    if not parcel.is_large:
        return parcel.frames()
    offered = Offer(digest=parcel.digest, size=len(parcel.payload))
    try:
        answer = offer(iter([offered.model_dump_json().encode()]))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older version
            return parcel.frames()
        raise
    try:
        taker = Taker.model_validate_json(answer)
    except ValidationError as error:
        raise ProtocolError("the server answers an offer of a payload in a way that is none") from error
    if taker.refused is not None:
        raise NotAwaitedError(taker.refused)
    if taker.held is None:
        return parcel.frames()
    if taker.held > offered.size:
        raise ProtocolError(f"the server has {taker.held} bytes of a payload of {offered.size}")
    note(taker.held)
    return parcel.frames_from(taker.held)


def holds(parts: PartFolder) -> tuple[str, str]:
    """Return the metadata that say what this process has of the payload that came last."""
    latest = parts.latest(THE_SERVER)
    return (HOLDS_KEY, "nothing" if latest is None else f"{latest[0].digest}:{latest[1]}")


def frames_to_send(parcel: Parcel, metadata: Iterable[tuple[str, str | bytes]]) -> Iterator[bytes]:
    """Return the frames of ``parcel`` that a caller has not, by the ``metadata`` of its call."""
    said = dict(metadata).get(HOLDS_KEY)
    if said is None or not parcel.is_large:  # None: an older version
        return parcel.frames()
    found = _HOLDS.fullmatch(str(said))
    if found is None or found[1] != parcel.digest:
        return parcel.frames_from(0)
    held = int(found[2])
    return parcel.frames_from(held if held <= len(parcel.payload) else 0)
