"""Versions of this package that can take part in one run, and the schema of messages that they use.

A message says its schema and the version of its sender. A process reads the present schema and the one before, and
answers in the schema of the message that it was sent; so it can be upgraded before or after its peers.
"""

from __future__ import annotations

import re

from fedml_dapper import __version__
from fedml_dapper.errors import ProtocolError

WIRE_SCHEMA = 5
"""Schema of messages. Raise it when a reader of the old schema would misread or refuse the new one, and teach
``identity.Agreement`` to write the old one."""
WIRE_SCHEMA_BEFORE = WIRE_SCHEMA - 1
"""Schema that is read as well, and written to processes that know no later one."""
FIRST_WITH_SUMS = 5
"""First schema with messages of secure sums."""
EARLIEST = "0.1.0"
"""Version that is assumed of messages and files that do not say theirs."""
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})[0-9A-Za-z.+-]{0,40}")


def check_understood(version: str, schema: int, own: str = __version__) -> None:
    """Check that a process of version ``own`` reads messages of ``schema`` that a process of ``version`` sends.

    Raises:
        ProtocolError: It does not; the error says which side is to upgrade.
    """
    _check_versions(version, own)
    if not WIRE_SCHEMA_BEFORE <= schema <= WIRE_SCHEMA:
        raise _too_far_apart(version, schema, own)


def common_schema(version: object, latest: object, own: str = __version__) -> int:
    """Return the schema for messages to a process of ``version`` whose latest schema is ``latest``.

    Raises:
        ProtocolError: There is no common schema, or ``version`` or ``latest`` is malformed.
    """
    if not isinstance(version, str) or not isinstance(latest, int):
        raise ProtocolError("it says of which version it is in a way that this one does not understand: upgrade either")
    _check_versions(version, own)
    if not WIRE_SCHEMA_BEFORE <= latest <= WIRE_SCHEMA + 1:  # the one before its latest is read and written there too
        raise _too_far_apart(version, latest, own)
    return min(latest, WIRE_SCHEMA)


def is_older(version: str, other: str) -> bool:
    """Return whether ``version`` is older than ``other`` by major or minor number.

    Raises:
        ProtocolError: One of them is no version.
    """
    return _parsed(version) < _parsed(other)


def _check_versions(version: str, own: str) -> None:
    """Raise :class:`ProtocolError` unless majors are equal, and minors of 0.x at most one apart."""
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
