"""Authorities made on the spot, for certificates that run/make_certs.sh does not make."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID


class Authority:
    """One with a key of its own."""

    def __init__(self) -> None:
        self._key = ed25519.Ed25519PrivateKey.generate()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.pem = self._issued(self._name, self._key.public_key(), days=1, is_authority=True)

    def certify(self, name: str, key: PrivateKeyTypes, days: int = 1) -> bytes:
        """PEM of a certificate from the day before yesterday on, until so many days from now."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._issued(subject, key.public_key(), days)  # type: ignore[arg-type]  # of keys that sign

    def _issued(
        self, subject: x509.Name, key: CertificatePublicKeyTypes, days: int, is_authority: bool = False
    ) -> bytes:
        now = datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        return builder.sign(self._key, None).public_bytes(Encoding.PEM)
