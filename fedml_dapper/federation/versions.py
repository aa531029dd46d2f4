"""Which versions of this package take part in one run, and in which schema of messages they speak to each other.

A message says its schema and the version of its sender. A process reads the present schema and the one before, and
answers in the schema in which it was spoken to; so it can be upgraded before or after those it speaks with.
"""

from __future__ import annotations

import re

from fedml_dapper import __version__
from fedml_dapper.errors import ProtocolError

WIRE_SCHEMA = 5
"""Of messages. Raise it when a reader of the old schema would misread or refuse the new one, and have
``identity.Agreement`` say what the old one has in its place."""
WIRE_SCHEMA_BEFORE = WIRE_SCHEMA - 1
"""Is read too, and written to those who know no later one."""
FIRST_WITH_SUMS = 5
"""The first schema whose processes know secure sums."""
EARLIEST = "0.1.0"
"""Of messages and files that do not say of which version they are."""
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})[0-9A-Za-z.+-]{0,40}")


def check_understood(version: str, schema: int, own: str = __version__) -> None:
    """Raises :class:`ProtocolError`, which says who is to upgrade, where we, of version ``own``, do not read messages
    of ``schema`` that ``version`` sends."""
    _check_versions(version, own)
    if not WIRE_SCHEMA_BEFORE <= schema <= WIRE_SCHEMA:
        raise _too_far_apart(version, schema, own)


def common_schema(version: object, latest: object, own: str = __version__) -> int:
    """In which schema to speak to a process of ``version`` that knows none after ``latest``; raises as
    :func:`check_understood` does, also for what is no version or number."""
    if not isinstance(version, str) or not isinstance(latest, int):
        raise ProtocolError("it says of which version it is in a way that this one does not understand: upgrade either")
    _check_versions(version, own)
    if not WIRE_SCHEMA_BEFORE <= latest <= WIRE_SCHEMA + 1:  # the one before its latest is read and written there too
        raise _too_far_apart(version, latest, own)
    return min(latest, WIRE_SCHEMA)


def is_older(version: str, other: str) -> bool:
    """Whether ``version`` has the lower major or minor number; raises :class:`ProtocolError` for what is none."""
    return _parsed(version) < _parsed(other)


def _check_versions(version: str, own: str) -> None:
    """Majors have to be equal, and minors of 0.x at most one apart."""
    theirs = _parsed(version)
    ours = _parsed(own)
    if theirs[0] != ours[0] or (ours[0] == 0 and abs(theirs[1] - ours[1]) > 1):
        older = version if is_older(version, own) else own
        raise ProtocolError(
            f"versions {version} and {own} of fedml_dapper are too far apart to take part in one run: upgrade the"
            f" process of version {older}"
        )


def _too_far_apart(version: str, schema: int, own: str) -> ProtocolError:
    return ProtocolError(
        f"version {version} of fedml_dapper speaks message schema {schema}, and version {own} knows"
        f" {WIRE_SCHEMA_BEFORE} and {WIRE_SCHEMA}: upgrade the process of version"
        f" {own if schema > WIRE_SCHEMA else version}"
    )


def _parsed(version: str) -> tuple[int, int]:
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ProtocolError(f"`{version[:50]}` is no version of fedml_dapper")
    return int(found[1]), int(found[2])
