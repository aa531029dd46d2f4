"""By which clients of a sum know each other's word, whatever the server between them says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedml_dapper.secure_sum.protocol import PublicKeys, Roster


class Witness(Protocol):
    """Who can tell whether a client has signed something."""

    def check(self, client: int, certificate: bytes, statement: bytes, signature: bytes) -> None:
        """Raises :class:`ProtocolError`, which names the client, unless the certificate is that client's and its owner
        signed the statement."""


class Identity(Witness, Protocol):
    """A client that signs, too."""

    @property
    def certificate(self) -> bytes:
        """By which others know its signatures."""

    def sign(self, statement: bytes) -> bytes:
        """Its signature."""


def statement_of_keys(about: bytes, client: int, keys: PublicKeys) -> bytes:
    """What a client signs of its keys: for which sum they are (``about``), and what it holds of that."""
    return _told(b"keys", about, client.to_bytes(8, "little"), keys.sealing, keys.masking, keys.part)


def statement_of_survivors(roster: Roster, sharers: Iterable[int], survivors: Iterable[int]) -> bytes:
    """What a survivor signs of the one list of survivors by which it tells shares."""
    return _told(b"survivors", roster.digest, _numbers(sharers), _numbers(survivors))


def _numbers(clients: Iterable[int]) -> bytes:
    return b"".join(client.to_bytes(8, "little") for client in sorted(clients))


def _told(*parts: bytes) -> bytes:
    """These, so that no other parts are told by the same bytes."""
    lengths = b"".join(len(each).to_bytes(8, "little") for each in parts)
    return b"fedml_dapper secure sum" + len(parts).to_bytes(8, "little") + lengths + b"".join(parts)
