"""Do server and client mean the same experiment?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedml_dapper.config import Settings, named_by_source, sources

WIRE_SCHEMA = 4
"""Version of the message format; raise it when a reader of the old one would misread the new one."""

_OF_THE_MACHINE: dict[str, Any] = {
    "common_args": {"training_type"},
    "data_args": {"data_cache_dir", "download"},
    "device_args": {"using_gpu", "gpu_id", "threads", "workers"},
    "comm_args": True,
    "tracking_args": True,
    "client_specific_args": True,
    "silo_args": True,
    "dapper_args": {
        "output_dir",
        "checkpoint_every",
        "checkpoints_kept",
        "round_timeout_s",
        "join_timeout_s",
        "min_clients_per_round",
    },
}
"""Settings in which the two sides may differ."""


class Identity(BaseModel):
    """What a message says of the experiment it belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wire_schema: int
    method: str
    settings_digest: str

    @classmethod
    def of(cls, settings: Settings, named: Mapping[str, str] | None = None) -> Identity:
        """Of an experiment with ``settings``; for ``named`` see :func:`shared_settings`."""
        shared = shared_settings(settings, named)
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]
        return cls(wire_schema=WIRE_SCHEMA, method=shared["dapper_args"]["method"], settings_digest=digest)

    def difference(self, own: Identity) -> str | None:
        """The first value in which this differs from our ``own`` identity, naming both; None if none does."""
        for name, label in (
            ("wire_schema", "wire schema"),
            ("method", "method"),
            ("settings_digest", "settings digest"),
        ):
            theirs, ours = getattr(self, name), getattr(own, name)
            if theirs != ours:
                return f"{label} is {theirs} there and {ours} here"
        return None


def shared_settings(settings: Settings, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings on which server and clients must agree.

    What is not of this package stands in them as ``named`` says: a name and a digest of its source, by default of the
    source that is here now.
    """
    known = {name: dropped for name, dropped in _OF_THE_MACHINE.items() if name in Settings.model_fields}
    values = settings.model_dump(mode="json", exclude=known)
    return named_by_source(values, sources(settings) if named is None else named)


def settings_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Every setting that differs, with both values, e.g. ``train_args.epochs is 5 there and 1 here``."""
    left, right = dict(_leaves(theirs)), dict(_leaves(ours))
    differing = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    return "; ".join(f"{key} is {left.get(key)} there and {right.get(key)} here" for key in differing)


def changed_params(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """As :func:`settings_difference`, of a method's settings; those that one side does not know do not count, since
    versions differ in them."""
    known = theirs.keys() & ours.keys()
    return settings_difference({key: theirs[key] for key in known}, {key: ours[key] for key in known})


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
