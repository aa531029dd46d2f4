"""Clients that sign by Ed25519 keys; a certificate is the public key, and all know whose is whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedml_dapper.errors import ProtocolError


class Register:
    """Whose certificate is whose."""

    def __init__(self, certificates: Mapping[int, bytes]) -> None:
        self._certificates = certificates

    def check(self, client: int, certificate: bytes, statement: bytes, signature: bytes) -> None:
        if self._certificates.get(client) != certificate:
            raise ProtocolError(f"the certificate of client {client} is not its own")
        try:
            Ed25519PublicKey.from_public_bytes(certificate).verify(signature, statement)
        except InvalidSignature as error:
            raise ProtocolError(f"client {client} has not signed this") from error


class Person(Register):
    """A client, by the private key of 32 bytes that follows from its number."""

    def __init__(self, client: int, certificates: Mapping[int, bytes]) -> None:
        super().__init__(certificates)
        self._client = client

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return _key_of(self._client)

    @property
    def certificate(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)


def _key_of(client: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(client.to_bytes(32, "little"))


def people(clients: Iterable[int]) -> dict[int, Person]:
    """One for each of these clients."""
    certificates = {client: _key_of(client).public_key().public_bytes_raw() for client in clients}
    return {client: Person(client, certificates) for client in certificates}
