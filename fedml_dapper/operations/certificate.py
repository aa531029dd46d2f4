"""A certificate in the few words by which people tell it from others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from fedml_dapper.errors import ConfigError
from fedml_dapper.regular_file import read_regular

MAX_BYTES = 1 << 20
"""Most bytes that are read of a file with a certificate."""


@dataclass(frozen=True)
class Certificate:
    """What of a certificate is looked at once TLS has accepted it."""

    fingerprint: str
    """SHA-256 of the certificate (DER), 64 hexadecimal digits."""
    name: str
    """Its common name; empty where it has none, or several."""
    expires: datetime
    """UTC."""

    @classmethod
    def of(cls, found: x509.Certificate) -> Certificate:
        names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return cls(
            fingerprint=found.fingerprint(SHA256()).hex(),
            name=str(names[0].value) if len(names) == 1 else "",
            expires=found.not_valid_after_utc,
        )

    @property
    def is_expired(self) -> bool:
        return datetime.now(timezone.utc) >= self.expires


@lru_cache(maxsize=1024)
def certificate_of(pem: bytes) -> Certificate:
    """The first certificate in ``pem``. Raises :class:`ConfigError` where there is none."""
    try:
        return Certificate.of(x509.load_pem_x509_certificate(pem))
    except ValueError as error:
        raise ConfigError(f"no certificate that can be read: {error}") from error


def read_certificate(file: Path) -> Certificate:
    """The certificate in a PEM file. Raises :class:`ConfigError`, which names the file."""
    try:
        return certificate_of(read_regular(file, MAX_BYTES))
    except (OSError, ConfigError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: {reason}; expected a certificate (PEM), such as silo-3.pem") from error
