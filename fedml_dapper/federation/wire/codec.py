"""Encoding of messages as bytes: a JSON header, and safetensors for the numbers. Nothing is unpickled.

    b"FDAP" | checksum, 32 bytes | header length, 4 bytes little-endian | header, JSON | safetensors

The checksum is SHA-256 over all that follows it. It detects messages that were damaged on their way. It does not detect
forged ones, so the content is checked all the same.

All weights of one dtype travel as one flat tensor, in the order of the layout's names and in the shapes that the
message's pruning plan implies. So neither names nor shapes of weights are taken from the message, and the overhead is a
few hundred bytes. Plans are bitmaps, one bit per channel. Either may be in fewer bits (``pruning.uplink``): then the
codes, and the exponents of int8, are such flat tensors too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from fedml_dapper import __version__
from fedml_dapper.config import Uplink
from fedml_dapper.config.limits import MAX_SECONDS
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire.agreement import Agreement, Identity, ReceivedSettings, Sender
from fedml_dapper.methods import Downlink, Memory, TrainingMetrics, Upload
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning import ChannelLayout, PruningPlan, Tensors
from fedml_dapper.pruning.uplink import CODES, is_reduced, reduce, restore

MAGIC = b"FDAP"
MAX_HEADER_BYTES = 1 << 20
"""Largest header of a message, and again of its safetensors."""
_DIGEST_BYTES = 32
_LENGTH_BYTES = 4
_START = len(MAGIC) + _DIGEST_BYTES + _LENGTH_BYTES
_MAX_CONTAINERS = 10_000
"""Most lists and objects in a header, since each takes fifty times the memory of its two brackets when parsed."""
_INTEGER_BOUND = 2**31
"""Bound that all integers in a header are below."""
MAX_SAMPLES = 2**29
"""Bound on the number of a client's samples, below which weighted sums are exact in float64."""
_EXTRA = "extra/"
_MEMORY = "memory/"
_EXPONENTS = "int8 exponents"


class _Metrics(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")

    loss: float
    steps: int = Field(ge=0, lt=_INTEGER_BOUND)
    seconds: float = Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)
    accuracy_before: float | None = None
    accuracy_after: float | None = None

    @classmethod
    def of(cls, metrics: TrainingMetrics) -> _Metrics:
        return cls(**{name: getattr(metrics, name) for name in cls.model_fields})


class Header(BaseModel):
    """Header of an encoded downlink or upload."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")

    kind: Literal["downlink", "upload"]
    identity: Identity
    round: int = Field(ge=1, lt=_INTEGER_BOUND)
    client_id: int = Field(ge=0, lt=_INTEGER_BOUND)
    plan: dict[str, str] = {}
    """Bitmap of kept channels by group, in base64."""
    omitted: tuple[str, ...] = ()
    """Names of the layout's tensors that are not sent."""
    unsliced: tuple[str, ...] = ()
    """Names of an upload's tensors that are sent whole, whatever the plan keeps."""
    level: int | None = Field(default=None, ge=1, lt=_INTEGER_BOUND)
    """The client's level in the round; in downlinks alone."""
    num_samples: int | None = Field(default=None, ge=1, lt=MAX_SAMPLES)
    metrics: _Metrics | None = None
    settings: ReceivedSettings | None = None
    """The server's settings, so that a client can tell in which its own differ; in downlinks alone."""
    memory: dict[str, Any] | None = None
    """Plain values of a client's memory, where the memory travels with the message."""


class Codec:
    """Encodes and decodes the messages of one experiment."""

    def __init__(self, layout: ChannelLayout, agreement: Agreement) -> None:
        self._layout = layout
        self._agreement = agreement
        self._last: _Body | None = None
        """Body of the last downlink, kept since most methods send the same tensors to all clients of a round."""

    @part("wire")
    def encode(self, message: Downlink | Upload, memory: Memory | None = None, schema: int | None = None) -> bytes:
        """Encode a message.

        Args:
            message: What is sent.
            memory: The client's, where another process will serve the client next time.
            schema: Schema of the message, by default that of our answers.
        """
        is_upload = isinstance(message, Upload)
        schema = schema or self._agreement.schema
        header = Header(
            kind="upload" if is_upload else "downlink",
            identity=self._agreement.identity(schema),
            round=message.round,
            client_id=message.client_id,
            plan=self.bitmaps(message.plan),
            omitted=tuple(sorted(message.plan.omitted)),
            unsliced=tuple(sorted(message.unsliced)) if isinstance(message, Upload) else (),
            level=message.level if isinstance(message, Downlink) else None,
            num_samples=message.num_samples if isinstance(message, Upload) else None,
            metrics=_Metrics.of(message.metrics) if isinstance(message, Upload) else None,
            settings=None if is_upload else self._agreement.settings(schema),
            memory=None if memory is None else memory.values,
        )
        is_shared = not is_upload and memory is None  # a memory is the client's own
        body = self._shared_body(message) if is_shared else self._body(message, is_upload, memory)
        return framed(header.model_dump_json(exclude_defaults=True).encode(), body)

    def _body(self, message: Downlink | Upload, is_upload: bool, memory: Memory | None) -> bytes:
        return safetensors.torch.save(
            _flatten(message.weights, self._sent(message.plan), self._layout, self._format(is_upload))
            | prefixed(_EXTRA, message.extras)
            | prefixed(_MEMORY, {} if memory is None else memory.tensors)
        )

    def _shared_body(self, message: Downlink | Upload) -> bytes:
        """Encode the tensors of a downlink, or take those of the last one where they are the same."""
        sent = {name: message.weights[name] for name in self._sent(message.plan)}
        sent |= {_EXTRA + name: tensor for name, tensor in message.extras.items()}
        if self._last is None or not self._last.holds(message.round, sent):
            self._last = _Body(message.round, sent, self._body(message, is_upload=False, memory=None))
        return self._last.content

    @part("wire")
    def decode(self, data: bytes) -> tuple[Downlink | Upload, Memory | None]:
        """Decode a message and the memory that travels with it, and check them before any value is used.

        Raises:
            ProtocolError: The bytes are damaged or of another experiment; names, dtypes or sizes do not fit the plan;
                indices are out of range; or values are not finite.
        """
        header, body = unframed(data, Header)
        self._agreement.check(header.identity)
        plan = self.plan_of(header.plan, header.omitted)
        if len(set(header.unsliced)) < len(header.unsliced):
            raise ProtocolError("message names a tensor twice")
        tensors = read_tensors(body)
        extras = taken(tensors, _EXTRA)
        remembered = taken(tensors, _MEMORY)
        memory = None if header.memory is None else Memory(remembered, header.memory)
        check_finite(tensors | extras)
        weights = self._unflatten(tensors, header, plan)
        if header.kind == "downlink":
            return Downlink(header.round, header.client_id, weights, plan, extras, header.level), memory
        if header.num_samples is None or header.metrics is None:
            raise ProtocolError("upload lacks its sample count or its metrics")
        upload = Upload(
            round=header.round,
            client_id=header.client_id,
            num_samples=header.num_samples,
            weights=weights,
            metrics=TrainingMetrics(**header.metrics.model_dump()),
            plan=plan,
            unsliced=frozenset(header.unsliced),
            extras=extras,
        )
        return upload, memory

    def read_header(self, data: bytes) -> Header:
        """Decode the header alone, of any experiment."""
        return unframed(data, Header)[0]

    def decode_downlink(self, data: bytes, who: str) -> tuple[Downlink, Memory | None]:
        """Decode what a server sends; from then on this process goes by the server's settings.

        Args:
            data: The message.
            who: What this process is called in errors.

        Raises:
            ProtocolError: The bytes are no downlink of this experiment; see :meth:`decode`.
            ConfigError: The server has other settings; the error names them.
        """
        header = self.read_header(data)
        if header.settings is None:
            raise ProtocolError("expected a downlink from the server, with its settings")
        self._agreement.accept(header.identity, header.settings, who)
        message, memory = self.decode(data)
        if not isinstance(message, Downlink):
            raise ProtocolError("expected a downlink from the server, got an upload")
        return message, memory

    def bitmaps(self, plan: PruningPlan) -> dict[str, str]:
        """Return the bitmap of kept channels of each group that a plan cuts, in base64."""
        return {name: self._to_bitmap(name, kept) for name, kept in plan.kept.items()}

    def plan_of(self, bitmaps: Mapping[str, str], omitted: Sequence[str]) -> PruningPlan:
        """Return the plan with these :meth:`bitmaps` and omitted tensors.

        Raises:
            ProtocolError: Bitmaps or names do not fit the model.
        """
        plan = PruningPlan({name: self._from_bitmap(name, text) for name, text in bitmaps.items()}, frozenset(omitted))
        plan.check(self._layout)
        if len(plan.omitted) < len(omitted):
            raise ProtocolError("message names a tensor twice")
        return plan

    def _sent(self, plan: PruningPlan) -> tuple[str, ...]:
        return tuple(name for name in self._layout.travelling if name not in plan.omitted)

    def _unflatten(self, flat: dict[str, Tensor], header: Header, plan: PruningPlan) -> dict[str, Tensor]:
        names = self._sent(plan)
        for name in header.unsliced:
            if name not in self._layout.tensors:
                raise ProtocolError(f"message names tensor `{name}`, which the model does not have")
        kind = self._format(header.kind == "upload")
        parts = dict[str, _Part]()
        for name in names:
            spec = self._layout.tensors[name]
            shape = torch.Size(spec.shape_at({} if name in header.unsliced else plan.widths))
            reduced = is_reduced(spec, kind)
            dtype = CODES[kind] if reduced else spec.dtype
            parts.setdefault(_key(dtype), _Part(dtype)).shapes[name] = shape
            if reduced and kind == "int8":
                parts.setdefault(_EXPONENTS, _Part(torch.int8)).shapes[name] = shape[:1]
        found = {key: expected.cut(flat.pop(key, None)) for key, expected in parts.items()}
        if flat:
            raise ProtocolError(f"message holds unexpected tensors: {', '.join(sorted(flat)[:3])}")
        exponents = found.pop(_EXPONENTS, {})
        arrived = {name: tensor for tensors in found.values() for name, tensor in tensors.items()}
        restored = {
            name: restore(tensor, exponents.get(name))
            for name, tensor in arrived.items()
            if is_reduced(self._layout.tensors[name], kind)
        }
        if exponents:  # int8 has no NaN among its codes, but among its exponents
            check_finite(restored)
        return {name: restored.get(name, arrived[name]) for name in names}

    def _format(self, is_upload: bool) -> Uplink:
        return self._layout.uplink if is_upload else self._layout.downlink

    def _to_bitmap(self, group: str, kept: Tensor) -> str:
        mask = np.zeros(self._layout.groups[group].channels, dtype=bool)
        mask[kept.numpy()] = True
        return base64.b64encode(np.packbits(mask).tobytes()).decode()

    def _from_bitmap(self, group: str, text: str) -> Tensor:
        if group not in self._layout.groups:
            raise ProtocolError(f"pruning plan names group `{group}`, which the model does not have")
        channels = self._layout.groups[group].channels
        try:
            bits = np.unpackbits(np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8))
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(f"pruning plan of `{group}` is not a bitmap") from error
        if len(bits) != -(-channels // 8) * 8 or bits[channels:].any():  # padded with zeros to whole bytes
            raise ProtocolError(f"pruning plan of `{group}` is not a bitmap of {channels} channels")
        return torch.from_numpy(np.flatnonzero(bits))


@dataclass(frozen=True)
class _Part:
    """Dtype and shapes of the weights that one flat tensor of a message should hold."""

    dtype: torch.dtype
    shapes: dict[str, torch.Size] = field(default_factory=dict)

    def cut(self, flat: Tensor | None) -> dict[str, Tensor]:
        """Split ``flat`` into the weights that it consists of."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        if flat is None or flat.dtype != self.dtype or flat.shape != (sum(sizes),):
            found = "nothing" if flat is None else f"{tuple(flat.shape)} {flat.dtype}"
            raise ProtocolError(
                f"message should hold {sum(sizes)} {_key(self.dtype)} values for its plan, found {found}"
            )
        pieces = torch.split(flat, sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


@dataclass(frozen=True, eq=False)
class _Body:
    """Encoded tensors of a round, which do not change while the round is open."""

    round: int
    tensors: Tensors
    content: bytes

    def holds(self, round_: int, tensors: Tensors) -> bool:
        """Return whether the body encodes these very tensors, of this round."""
        return (
            self.round == round_
            and self.tensors.keys() == tensors.keys()
            and all(tensor is self.tensors[name] for name, tensor in tensors.items())
        )


def framed(header: bytes, body: bytes) -> bytes:
    """Frame ``header`` and ``body`` as one message."""
    content = (len(header).to_bytes(_LENGTH_BYTES, "little"), header, body)
    return b"".join((MAGIC, _digest(*content), *content))


H = TypeVar("H", bound=BaseModel)


def unframed(data: bytes, kind: type[H]) -> tuple[H, bytes]:
    """Split a message into its header, parsed as ``kind``, and its body.

    Raises:
        ProtocolError: The message is damaged, or its header is of another kind.
    """
    size = int.from_bytes(data[_START - _LENGTH_BYTES : _START], "little")
    if data[: len(MAGIC)] != MAGIC or not 0 < size <= min(MAX_HEADER_BYTES, len(data) - _START):
        raise ProtocolError("not a fedml_dapper message, or one that was cut off")
    covered = len(MAGIC) + _DIGEST_BYTES
    if data[len(MAGIC) : covered] != _digest(memoryview(data)[covered:]):
        raise ProtocolError("message does not fit its checksum: it was damaged on its way, or another version sent it")
    header = data[_START : _START + size]
    if header.count(b"[") + header.count(b"{") > _MAX_CONTAINERS:  # before parsing, which would take the memory
        raise ProtocolError(f"message header holds more than {_MAX_CONTAINERS} lists and objects")
    try:
        return kind.model_validate_json(header), data[_START + size :]
    except ValidationError as error:
        _check_sender(header)
        raise ProtocolError(f"message header is malformed at {first_mistake(error)}") from error


def first_mistake(error: ValidationError) -> str:
    """Describe the first mistake in a message for its sender: the place and the reason."""
    first = error.errors(include_url=False, include_input=False)[0]
    unknown = first["type"] == "extra_forbidden"
    why = f"version {__version__} does not know it, a later one may: upgrade" if unknown else first["msg"]
    return f"`{'.'.join(str(step) for step in first['loc'])}`: {why}"


class _Preface(BaseModel):
    identity: Sender


def _check_sender(header: bytes) -> None:
    """Raise :class:`ProtocolError` where a header is malformed because another version wrote it."""
    with suppress(ValidationError):
        _Preface.model_validate_json(header).identity.check()


def read_tensors(body: bytes) -> dict[str, Tensor]:
    """Read the tensors of a message by name; raise :class:`ProtocolError` for a body that is not safetensors."""
    if int.from_bytes(body[:8], "little") > MAX_HEADER_BYTES:
        raise ProtocolError("message body is not safetensors, or lists too many tensors")
    try:
        return safetensors.torch.load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError, AssertionError) as error:
        raise ProtocolError(f"message body is not safetensors: {error}") from error


def check_finite(tensors: Tensors) -> None:
    """Raise :class:`ProtocolError` where a tensor holds infinity or NaN."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ProtocolError(f"message holds values that are not finite, in `{name}`")


def _digest(*pieces: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _flatten(weights: Tensors, names: tuple[str, ...], layout: ChannelLayout, kind: Uplink) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {}
    for name in names:
        tensor = weights[name].detach().cpu()
        exponents = None
        if is_reduced(layout.tensors[name], kind):
            tensor, exponents = reduce(tensor, kind)
        parts.setdefault(_key(tensor.dtype), []).append(tensor.flatten())
        if exponents is not None:
            parts.setdefault(_EXPONENTS, []).append(exponents)
    return {key: torch.cat(tensors) for key, tensors in parts.items()}


def prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under names with ``prefix``, on the CPU and contiguous."""
    return {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove the tensors whose names begin with ``prefix``, and return them under names without it."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def _key(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
