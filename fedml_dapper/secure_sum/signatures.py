"""Statements that clients of a sum sign, and interfaces to sign and verify them, independent of the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedml_dapper.secure_sum.protocol import PublicKeys, Roster


class Witness(Protocol):
    """Interface that verifies clients' signatures."""

    def check(self, client: int, certificate: bytes, statement: bytes, signature: bytes) -> None:
        """Verify that the certificate is the client's, and the signature of the statement is by its owner.

        Raises:
            ProtocolError: It is not; the error names the client.
        """


class Identity(Witness, Protocol):
    """Interface of a client that signs, and verifies others' signatures."""

    @property
    def certificate(self) -> bytes:
        """Certificate by which others verify this client's signatures."""

    def sign(self, statement: bytes) -> bytes:
        """Return the client's signature of a statement."""


def statement_of_keys(about: bytes, client: int, keys: PublicKeys) -> bytes:
    """Return the statement by which a client signs its keys, for the sum of ``about`` and the part that it holds."""
    return _encoded(b"keys", about, client.to_bytes(8, "little"), keys.sealing, keys.masking, keys.part)


def statement_of_survivors(roster: Roster, sharers: Iterable[int], survivors: Iterable[int]) -> bytes:
    """Return the statement by which a survivor signs the list of survivors for which it reveals shares."""
    return _encoded(b"survivors", roster.digest, _numbers(sharers), _numbers(survivors))


def _numbers(clients: Iterable[int]) -> bytes:
    return b"".join(client.to_bytes(8, "little") for client in sorted(clients))


def _encoded(*parts: bytes) -> bytes:
    """Encode the parts with their lengths, so that no other parts have the same bytes."""
    lengths = b"".join(len(each).to_bytes(8, "little") for each in parts)
    return b"fedml_dapper secure sum" + len(parts).to_bytes(8, "little") + lengths + b"".join(parts)
