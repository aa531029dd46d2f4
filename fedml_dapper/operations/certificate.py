"""The fields of a certificate that this package uses: fingerprint, name and expiry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import read_regular

MAX_BYTES = 1 << 20
"""Most bytes that are read of a file with a certificate."""


@dataclass(frozen=True)
class Certificate:
    """Fields of a certificate that are checked once TLS has accepted it."""

    fingerprint: str
    """SHA-256 of the certificate (DER), 64 hexadecimal digits."""
    name: str
    """Common name of the certificate; empty where it has none, or several."""
    expires: datetime
    """End of its validity, in UTC."""

    @classmethod
    def of(cls, found: x509.Certificate) -> Certificate:
        """Take the fields from a parsed certificate."""
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return cls(
            fingerprint=found.fingerprint(SHA256()).hex(),
            name=str(names[0].value) if len(names) == 1 else "",
            expires=found.not_valid_after_utc,
        )

    @property
    def is_expired(self) -> bool:
        """Whether the certificate is no longer valid."""
        return datetime.now(timezone.utc) >= self.expires


@lru_cache(maxsize=1024)
def certificate_of(pem: bytes) -> Certificate:
    """Read the first certificate in ``pem``; raise :class:`ConfigError` where there is none."""
    try:
        return Certificate.of(x509.load_pem_x509_certificate(pem))
    except ValueError as error:
        raise ConfigError(f"no certificate that can be read: {error}") from error


def read_certificate(file: Path) -> Certificate:
    """Read the first certificate in a PEM file.

    Raises:
        ConfigError: The file cannot be read or holds none.
    """
    try:
        return certificate_of(read_regular(file, MAX_BYTES))
    except (OSError, ConfigError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: {reason}; expected a certificate (PEM), such as silo-3.pem") from error
