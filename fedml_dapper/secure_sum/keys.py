"""Key agreement of two clients by X25519, and keys derived from it by HKDF with SHA-256."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedml_dapper.errors import ProtocolError

KEY_BYTES = 32


class KeyPair:
    """A private key of 32 bytes, with its public key."""

    def __init__(self, private: bytes) -> None:
        self.private = private
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def agreed(self, other: bytes, purpose: bytes) -> bytes:
        """Return the key of 32 bytes that only this pair and the owner of the public key ``other`` can derive.

        Raises:
            ProtocolError: ``other`` is of small order, so that anybody could derive the key.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise ProtocolError("a peer's public key is none") from error
        return derived(shared, purpose)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Derive a key of 32 bytes from ``secret``, a different one for every purpose."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"fedml_dapper secure sum: " + purpose).derive(secret)
