"""One-time codes by which a device joins: ``silo-7.SECRET.FINGERPRINT``.

The secret is what the federation's authority gives a certificate for, once. The fingerprint is by what the device knows
that authority before it says the secret. Both are in Base32, in small letters, so that a code can be read aloud, and
neither a shell nor a mail program sees more in it than one word.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field

from fedml_dapper.errors import ConfigError

SECRET_BYTES = 15
"""Random bytes of a secret: 120 bits."""
FINGERPRINT_BYTES = 20
"""First bytes of SHA-256 of ca.pem: 160 bits, so nobody finds another file with the same."""
MAX_RANK = 9_999_999
_CODE = re.compile(r"silo-([1-9][0-9]{0,6})\.([a-z2-7]{24})\.([a-z2-7]{32})")


@dataclass(frozen=True)
class JoinCode:
    """What a device is told to join by."""

    rank: int
    """Rank of the silo that the device becomes."""
    secret: str = field(repr=False)
    """24 letters."""
    fingerprint: str
    """Fingerprint of the authority's file, ca.pem, in 32 letters."""

    def __str__(self) -> str:
        return f"{self.name}.{self.secret}.{self.fingerprint}"

    @property
    def name(self) -> str:
        """Common name of the certificate that it is for."""
        return f"silo-{self.rank}"

    @classmethod
    def new(cls, rank: int, authority: bytes) -> JoinCode:
        """Draw one for the federation whose ca.pem has the content ``authority``."""
        return cls(rank, _letters(secrets.token_bytes(SECRET_BYTES)), fingerprint_of(authority))

    @classmethod
    def read(cls, text: str) -> JoinCode:
        """Take a code apart; raise :class:`ConfigError`, which does not repeat the secret, for any other text."""
        found = _CODE.fullmatch(text.strip().lower())
        if found is None:
            raise ConfigError(
                "that is no code to join by; expected silo-RANK.SECRET.FINGERPRINT, whole, as `fedml-dapper silos"
                " invite` writes it"
            )
        return cls(int(found[1]), found[2], found[3])


def fingerprint_of(authority: bytes) -> str:
    """Return what a code says of ca.pem's content."""
    return _letters(hashlib.sha256(authority).digest()[:FINGERPRINT_BYTES])


def digest_of(secret: str) -> str:
    """Return what is kept of a secret: SHA-256, 64 hexadecimal digits. No salt is needed, as nobody chose it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _letters(content: bytes) -> str:
    return base64.b32encode(content).decode().lower()
