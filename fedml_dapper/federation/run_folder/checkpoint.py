"""Checkpoints, from which a run resumes after an interruption.

A checkpoint is a safetensors file. Its metadata hold a schema version, one JSON document with everything that is not a
tensor, and a digest over these and every tensor's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import Field, JsonValue, ValidationError
from torch import Tensor

from fedml_dapper import __version__
from fedml_dapper.errors import DataError
from fedml_dapper.federation.round.late_uploads import LateUpload
from fedml_dapper.federation.round.quarantine import Standing
from fedml_dapper.federation.run_folder.records import Record, RoundRecord
from fedml_dapper.federation.run_folder.tensor_file import (
    UnusableError,
    metadata_of,
    read_tensors,
    storable,
    write_tensors,
)
from fedml_dapper.federation.scoring.after_round import Best
from fedml_dapper.federation.wire.agreement import ReceivedSettings
from fedml_dapper.federation.wire.settings_shared import SharedSettings
from fedml_dapper.methods import Memory, TrainingMetrics, Upload
from fedml_dapper.pruning import PruningPlan, Tensors

SCHEMA = "2"
"""Schema of the checkpoints that are written. Raise it when a reader of the old one would misread or refuse the new."""
SCHEMA_BEFORE = "1"
"""Schema that is read as well. It has settings section by section, without defaults of the method, which are in the
ledger."""
_SCHEMA = "schema"
_HEADER = "header"
_DIGEST = "sha256"
_WEIGHTS = "weights"
_SERVER = "server"
_CLIENT = "client"
_LATE = "late"
_CHANGE = "change"
_KEPT = "kept"
_EXTRA = "extra"
"""The last three are prefixes of a late upload's tensors: changes of weights, kept channels, extras."""


@dataclass(frozen=True)
class Checkpoint:
    """State of server and clients between two rounds, without random streams: these follow from the seed."""

    weights: Tensors
    """The global model."""
    memory: Memory
    """What the method remembers on the server."""
    memories: Mapping[int, Memory]
    """What the method remembers on each client, by client id."""
    best: Best
    best_validation: Best
    last_record: RoundRecord
    standing: Standing = field(default_factory=Standing)
    """Clients' strikes and quarantines."""
    late: Mapping[int, LateUpload] = field(default_factory=dict)
    """Uploads that will count in a later round, by client id."""

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return self.last_record.round


class _Late(Record):
    """Fields of a late upload that are not tensors."""

    round: int
    num_samples: int
    metrics: TrainingMetrics
    bytes_down: int
    omitted: tuple[str, ...]
    unsliced: tuple[str, ...]


class _Header(Record):
    settings: ReceivedSettings
    last_record: RoundRecord
    standing: Standing = Standing()
    best: Best
    best_validation: Best
    server: dict[str, JsonValue]
    clients: dict[int, dict[str, JsonValue]]
    late: dict[int, _Late] = Field(default_factory=dict)
    names: tuple[str, ...]
    """Names of all tensors in the order of their dictionaries, on which the bits of sums over them depend."""
    on_device: tuple[str, ...]
    """Names of the tensors that were on the experiment's device, where that is not the CPU."""


def save_checkpoint(checkpoint: Checkpoint, settings: SharedSettings, path: Path) -> None:
    """Write ``checkpoint`` of an experiment with ``settings``; an older file at ``path`` stays until it is complete."""
    tensors = _named(checkpoint)
    header = _Header(
        settings=settings,
        last_record=checkpoint.last_record,
        standing=checkpoint.standing,
        best=checkpoint.best,
        best_validation=checkpoint.best_validation,
        server=checkpoint.memory.values,
        clients={client_id: memory.values for client_id, memory in checkpoint.memories.items()},
        late={client_id: _described(late) for client_id, late in checkpoint.late.items()},
        names=tuple(tensors),
        on_device=tuple(name for name, tensor in tensors.items() if tensor.device.type != "cpu"),
    ).model_dump_json()
    tensors = storable(tensors)
    write_tensors(tensors, {_SCHEMA: SCHEMA, _HEADER: header, _DIGEST: _digest(SCHEMA, header, tensors)}, path)


def load_checkpoint(path: Path, settings: SharedSettings, device: torch.device) -> Checkpoint:
    """Read the checkpoint at ``path`` and check it to its last bit.

    Raises:
        UnusableError: The file is damaged, no checkpoint, or of other settings.
        DataError: The file is of a version whose checkpoints are not read here, or cannot be read now.
    """
    metadata = metadata_of(path, "checkpoint")
    schema = metadata.get(_SCHEMA)
    if schema is None:
        raise UnusableError(f"checkpoint {path} is damaged: it says nothing of itself")
    if schema not in (SCHEMA_BEFORE, SCHEMA):
        raise DataError(
            f"checkpoint {path} is of schema {schema}, and version {__version__} reads {SCHEMA_BEFORE} and {SCHEMA}; go"
            " on with the version that wrote it"
        )
    found = read_tensors(path, "checkpoint")
    text = metadata.get(_HEADER, "")
    if metadata.get(_DIGEST) != _digest(schema, text, found):
        raise UnusableError(f"checkpoint {path} is damaged: its checksum does not fit its content")
    header = _parsed(text, path)
    theirs = header.settings
    if not isinstance(theirs, SharedSettings):
        theirs = SharedSettings.recorded(theirs, settings)
    if difference := theirs.difference(settings):
        raise UnusableError(f"checkpoint {path} is of another experiment: {difference}")
    groups: dict[str, dict[str, Tensor]] = {}
    on_device = frozenset(header.on_device)
    for name in header.names:
        group, _, own = name.partition("/")
        groups.setdefault(group, {})[own] = found[name].to(device) if name in on_device else found[name]
    return Checkpoint(
        weights=groups[_WEIGHTS],
        memory=Memory(groups.get(_SERVER, {}), header.server),
        memories={
            client_id: Memory(groups.get(f"{_CLIENT}{client_id}", {}), values)
            for client_id, values in header.clients.items()
        },
        best=header.best,
        best_validation=header.best_validation,
        last_record=header.last_record,
        standing=header.standing,
        late={
            client_id: _late(client_id, described, groups.get(f"{_LATE}{client_id}", {}))
            for client_id, described in header.late.items()
        },
    )


def accuracy_of(path: Path) -> float | None:
    """Return the global accuracy in a checkpoint's round, by which checkpoints are compared.

    It is the one on validation samples where there are any. None where that round was not tested, or ``path`` is no
    checkpoint.
    """
    try:
        record = _parsed(metadata_of(path, "checkpoint").get(_HEADER, ""), path).last_record
    except DataError:
        return None
    scores = record.validation_scores or record.scores
    return None if scores is None else scores.global_accuracy


def _parsed(text: str, path: Path) -> _Header:
    try:
        return _Header.model_validate_json(text)
    except ValidationError as error:
        raise UnusableError(f"checkpoint {path} is damaged: {error.errors(include_url=False)[0]['msg']}") from error


def _named(checkpoint: Checkpoint) -> dict[str, Tensor]:
    groups = {_WEIGHTS: checkpoint.weights, _SERVER: checkpoint.memory.tensors}
    groups |= {f"{_CLIENT}{client_id}": memory.tensors for client_id, memory in checkpoint.memories.items()}
    groups |= {f"{_LATE}{client_id}": _tensors_of(late.change) for client_id, late in checkpoint.late.items()}
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def _described(late: LateUpload) -> _Late:
    upload = late.change
    return _Late(
        round=upload.round,
        num_samples=upload.num_samples,
        metrics=upload.metrics,
        bytes_down=late.bytes_down,
        omitted=tuple(sorted(upload.plan.omitted)),
        unsliced=tuple(sorted(upload.unsliced)),
    )


def _tensors_of(upload: Upload) -> dict[str, Tensor]:
    parts = {_CHANGE: upload.weights, _KEPT: upload.plan.kept, _EXTRA: upload.extras}
    return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def _late(client_id: int, described: _Late, tensors: Tensors) -> LateUpload:
    parts: dict[str, dict[str, Tensor]] = {_CHANGE: {}, _KEPT: {}, _EXTRA: {}}
    for name, tensor in tensors.items():
        part, _, own = name.partition("/")
        parts[part][own] = tensor
    change = Upload(
        round=described.round,
        client_id=client_id,
        num_samples=described.num_samples,
        weights=parts[_CHANGE],
        metrics=described.metrics,
        plan=PruningPlan(parts[_KEPT], frozenset(described.omitted)),
        unsliced=frozenset(described.unsliced),
        extras=parts[_EXTRA],
    )
    return LateUpload(change, described.bytes_down)


def _digest(schema: str, header: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(f"{schema}\n{header}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
