"""What a process says of its version when it comes online, and in which schema it is then spoken to."""

from __future__ import annotations

from fedml.core.distributed.communication.message import Message

from fedml_dapper import __version__
from fedml_dapper.federation import EARLIEST, WIRE_SCHEMA, common_schema

VERSION = "version"
SCHEMA = "schema"
_UNSAID = 4
"""The latest schema of versions that do not introduce themselves."""


def introduce(status: Message) -> None:
    """Say in a ``status`` of which version its sender is, and the latest schema of messages that it knows."""
    status.add_params(VERSION, __version__)
    status.add_params(SCHEMA, WIRE_SCHEMA)


def schema_for(status: Message) -> int:
    """The schema in which the sender of ``status`` is spoken to; raises :class:`ProtocolError`, which says who is to
    upgrade, where there is none."""
    version = status.get(VERSION)
    latest = status.get(SCHEMA)
    return common_schema(EARLIEST if version is None else version, _UNSAID if latest is None else latest)
