"""Exchange of versions when a process comes online, from which the schema of messages to it follows."""

from __future__ import annotations

from fedml_dapper import __version__
from fedml_dapper.federation import EARLIEST, WIRE_SCHEMA, common_schema
from fedml_dapper.secure_grpc.message import AnyMessage

VERSION = "version"
SCHEMA = "schema"
_DEFAULT_SCHEMA = 4
"""Latest schema of versions that do not introduce themselves."""


def introduce(status: AnyMessage) -> None:
    """Add to a ``status`` message this process's version and the latest schema of messages that it knows."""
    status.add_params(VERSION, __version__)
    status.add_params(SCHEMA, WIRE_SCHEMA)


def schema_for(status: AnyMessage) -> int:
    """Return the schema for messages to the sender of ``status``.

    Raises:
        ProtocolError: There is no common schema; the error says which side is to upgrade.
    """
    version = status.get(VERSION)
    latest = status.get(SCHEMA)
    return common_schema(EARLIEST if version is None else version, _DEFAULT_SCHEMA if latest is None else latest)
