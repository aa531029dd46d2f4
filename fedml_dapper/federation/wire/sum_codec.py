"""Messages between a server and its silos in a secure sum, and their encoding, in the frame of uploads (``wire``).

silo -> server   Ready       public keys of a silo that has trained, signed by it
server -> silo   Start       keys and pruning plans of all silos
silo -> server   Deal        shares of the silo's secrets, each sealed for one other silo
server -> silo   Inbox       shares that other silos have sealed for this one
silo -> server   Masked      the silo's change of the model, under masks
server -> silo   Survivors   list of the silos whose masked changes have come
silo -> server   Consent     the silo's signature of that list
server -> silo   Agreed      all silos' signatures of that list
silo -> server   Revealed    shares of other silos' secrets, from which the server computes the masks
silo -> server   Declined    why the silo takes no further part in this sum
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire.agreement import Agreement, Identity
from fedml_dapper.federation.wire.codec import Codec, framed, unframed
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning import PruningPlan
from fedml_dapper.secure_sum import MOST_CLIENTS, Consent, Deal, PublicKeys, Revealed
from fedml_dapper.secure_sum.fixed_point import Words
from fedml_dapper.secure_sum.shamir import SHARE_BYTES

_INTEGER_BOUND = 2**31
"""Bound that all integers in a header are below."""
_LONGEST_PIECE = 1 << 16
"""Largest certificate or signature, in bytes."""
_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_ClientId = Annotated[int, Field(ge=0, lt=_INTEGER_BOUND)]
_ClientIds = Annotated[tuple[_ClientId, ...], Field(max_length=MOST_CLIENTS)]


@dataclass(frozen=True)
class Ready:
    """Message of a silo that has trained."""

    keys: PublicKeys | None
    """The silo's public keys; None where it takes no part, as it may have opened a sum of this round before."""
    steps: int
    """Optimizer steps that the silo made."""

    @property
    def public(self) -> tuple[bytes, ...]:
        """The silo's public keys, for sealing and for masking; empty where it takes no part."""
        return () if self.keys is None else (self.keys.sealing, self.keys.masking)


@dataclass(frozen=True)
class Start:
    """Message that begins a sum: keys and pruning plans of all clients, by client id."""

    keys: Mapping[int, PublicKeys]
    plans: Mapping[int, PruningPlan]


@dataclass(frozen=True)
class Inbox:
    """Message with the shares that other clients have sealed for its recipient."""

    sealed: Mapping[int, bytes]
    """Sealed shares by sender's client id."""


@dataclass(frozen=True, eq=False)
class Masked:
    """Message with a client's change of the model, under masks."""

    words: Words


@dataclass(frozen=True)
class Survivors:
    """Message with the list of clients whose masked changes have come, to be signed."""

    clients: tuple[int, ...]


@dataclass(frozen=True)
class Agreed:
    """Message with the clients' signatures of the list of survivors, by client id."""

    consents: Mapping[int, Consent]


@dataclass(frozen=True)
class Declined:
    """Message of a client that takes no further part in the sum."""

    reason: str


Content = Ready | Start | Deal | Inbox | Masked | Survivors | Consent | Agreed | Revealed | Declined


@dataclass(frozen=True, eq=False)
class SumMessage:
    """Message to or from one client, about the sum of a round."""

    round: int
    client_id: int
    sum_id: str
    """Random number of the sum, 32 hexadecimal digits that the server draws; empty in :class:`Ready`."""
    content: Content


class _Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kept: dict[str, str] = {}
    """Bitmap of kept channels by group, in base64."""
    omitted: tuple[str, ...] = ()


class SumHeader(BaseModel):
    """Header of an encoded :class:`SumMessage`; its kind decides which of the last fields are set."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["ready", "start", "deal", "inbox", "masked", "survivors", "consent", "agreed", "revealed", "declined"]
    identity: Identity
    round: int = Field(ge=1, lt=_INTEGER_BOUND)
    client_id: _ClientId
    sum_id: str = Field(default="", pattern=r"^([0-9a-f]{32})?$")
    steps: int = Field(default=0, ge=0, lt=_INTEGER_BOUND)
    keys: dict[_ClientId, tuple[_Hex, _Hex, _Hex]] = Field(default={}, max_length=MOST_CLIENTS)
    """Keys for sealing and masking and digest of the plan, by client id. The body holds the client's certificate and
    its signature."""
    plans: dict[_ClientId, _Plan] = Field(default={}, max_length=MOST_CLIENTS)
    clients: _ClientIds = ()
    """Clients whose pieces the body holds, one each, of equal length where there are no ``lengths``."""
    lengths: Annotated[
        tuple[Annotated[int, Field(ge=0, le=_LONGEST_PIECE)], ...], Field(max_length=2 * MOST_CLIENTS)
    ] = ()
    """Lengths of the body's pieces, in bytes."""
    lost: _ClientIds = ()
    """Clients whose pieces follow those of ``clients`` in the body."""
    commitment: _Hex | None = None
    reason: str = Field(default="", max_length=1000)


class SumCodec:
    """Encodes and decodes the messages of one experiment's secure sums."""

    def __init__(self, codec: Codec, agreement: Agreement) -> None:
        self._codec = codec
        self._agreement = agreement

    @part("wire")
    def encode(self, message: SumMessage) -> bytes:
        """Encode a message."""
        fields, body = self._header_and_body(message)
        header = SumHeader(
            identity=self._agreement.identity(self._agreement.schema),
            round=message.round,
            client_id=message.client_id,
            sum_id=message.sum_id,
            **fields,  # type: ignore[arg-type]
        )
        return framed(header.model_dump_json(exclude_defaults=True).encode(), body)

    @part("wire")
    def decode(self, data: bytes) -> SumMessage:
        """Decode a message.

        Raises:
            ProtocolError: The bytes are no message of a secure sum of this experiment.
        """
        header, body = unframed(data, SumHeader)
        self._agreement.check(header.identity)
        return SumMessage(header.round, header.client_id, header.sum_id, self._content(header, body))

    def part(self, plan: PruningPlan) -> bytes:
        """Return the digest of the part of the model that a client with this plan holds."""
        [encoded] = self._plans({0: plan}).values()
        return hashlib.sha256(json.dumps(encoded.model_dump(), sort_keys=True).encode()).digest()

    def context(self, start: SumMessage) -> bytes:
        """Return a digest that is different for every sum: of its round, its number and its clients' plans."""
        assert isinstance(start.content, Start)
        plans = {client: plan.model_dump() for client, plan in self._plans(start.content.plans).items()}
        context = json.dumps([start.round, start.sum_id, plans], sort_keys=True)
        return hashlib.sha256(context.encode()).digest()

    def _header_and_body(self, message: SumMessage) -> tuple[dict[str, object], bytes]:
        fields: dict[str, object]
        pieces: list[bytes] = []
        match message.content:
            case Ready(keys, steps):
                own = {message.client_id: keys} if keys else {}
                fields = {"kind": "ready", "steps": steps, "keys": _hex(own)}
                pieces = _credentials(own)
            case Start(all_keys, plans):
                fields = {"kind": "start", "keys": _hex(all_keys), "plans": self._plans(plans)}
                pieces = _credentials(all_keys)
            case Deal(sealed, commitment):
                fields = {"kind": "deal", "clients": tuple(sealed), "commitment": commitment.hex()}
                pieces = [*sealed.values()]
            case Inbox(sealed):
                fields = {"kind": "inbox", "clients": tuple(sealed)}
                pieces = [*sealed.values()]
            case Masked(words):
                fields = {"kind": "masked"}
                pieces = [words.astype("<u4", copy=False).tobytes()]
            case Survivors(left):
                fields = {"kind": "survivors", "clients": left}
            case Consent(signature):
                fields = {"kind": "consent"}
                pieces = [signature]
            case Agreed(consents):
                fields = {"kind": "agreed", "clients": tuple(consents)}
                pieces = [each.signature for each in consents.values()]
            case Revealed(seeds, private):
                fields = {"kind": "revealed", "clients": tuple(seeds), "lost": tuple(private)}
                pieces = [*seeds.values(), *private.values()]
            case Declined(reason):
                fields = {"kind": "declined", "reason": reason[:1000]}
        if fields["kind"] in ("ready", "start", "agreed"):
            fields["lengths"] = tuple(map(len, pieces))
        return fields, b"".join(pieces)

    def _content(self, header: SumHeader, body: bytes) -> Content:
        content: Content
        keys = _keys(header, body) if header.kind in ("ready", "start") else {}
        match header.kind:
            case "ready":
                content = Ready(keys.get(header.client_id), header.steps)
            case "start":
                content = self._start(header, keys)
            case "deal":
                content = Deal(_pieces(body, header.clients), bytes.fromhex(header.commitment or ""))
            case "inbox":
                content = Inbox(_pieces(body, header.clients))
            case "masked":
                content = Masked(_words(body))
            case "survivors":
                content = Survivors(header.clients)
            case "consent":
                content = Consent(body)
            case "agreed":
                content = _agreed(header, body)
            case "revealed":
                shares = _pieces(body, (*header.clients, *header.lost), SHARE_BYTES)
                seeds, private = ({client: shares[client] for client in each} for each in (header.clients, header.lost))
                content = Revealed(seeds, private)
            case "declined":
                content = Declined(header.reason)
        return content

    def _start(self, header: SumHeader, keys: Mapping[int, PublicKeys]) -> Start:
        plans = {client: self._codec.plan_of(plan.kept, plan.omitted) for client, plan in header.plans.items()}
        if plans.keys() != keys.keys():
            raise ProtocolError("a sum's clients are others by keys than by plans")
        return Start(keys, plans)

    def _plans(self, plans: Mapping[int, PruningPlan]) -> dict[int, _Plan]:
        return {
            client: _Plan(kept=self._codec.bitmaps(plan), omitted=tuple(sorted(plan.omitted)))
            for client, plan in plans.items()
        }


def _hex(keys: Mapping[int, PublicKeys]) -> dict[int, tuple[str, str, str]]:
    return {client: (each.sealing.hex(), each.masking.hex(), each.part.hex()) for client, each in keys.items()}


def _credentials(keys: Mapping[int, PublicKeys]) -> list[bytes]:
    """Return the certificate and then the signature of each client."""
    return [piece for each in keys.values() for piece in (each.certificate, each.signature)]


def _keys(header: SumHeader, body: bytes) -> dict[int, PublicKeys]:
    pieces = _cut(body, header.lengths)
    if len(pieces) != 2 * len(header.keys):
        raise ProtocolError("a message of a sum does not hold a certificate and a signature for each client's keys")
    return {
        client: PublicKeys(bytes.fromhex(sealing), bytes.fromhex(masking), bytes.fromhex(part), certificate, signature)
        for (client, (sealing, masking, part)), certificate, signature in zip(
            header.keys.items(), pieces[::2], pieces[1::2], strict=True
        )
    }


def _words(body: bytes) -> Words:
    if len(body) % 4:
        raise ProtocolError("a masked upload is not of whole words")
    return np.frombuffer(body, dtype="<u4")


def _agreed(header: SumHeader, body: bytes) -> Agreed:
    signatures = _cut(body, header.lengths)
    if len(set(header.clients)) < len(header.clients) or len(signatures) != len(header.clients):
        raise ProtocolError("a message of a sum does not hold one signature for each client that it names")
    return Agreed({client: Consent(each) for client, each in zip(header.clients, signatures, strict=True)})


def _cut(body: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Cut ``body`` into pieces of these lengths."""
    if sum(lengths) != len(body):
        raise ProtocolError("a message of a sum is not as long as the pieces that it names")
    ends = list(accumulate(lengths))
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _pieces(body: bytes, clients: tuple[int, ...], length: int | None = None) -> dict[int, bytes]:
    """Cut ``body`` into pieces of equal length, one for each of these clients."""
    if length is None:
        length = len(body) // max(1, len(clients))
    if len(set(clients)) < len(clients) or len(body) != length * len(clients):
        raise ProtocolError("a message of a sum does not hold one piece for each client that it names")
    return {client: body[at * length : (at + 1) * length] for at, client in enumerate(clients)}
