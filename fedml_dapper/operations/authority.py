"""The federation's authority where its key is: makes certificates as ``run/make_certs.sh`` does, for keys of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificateIssuerPublicKeyTypes,
    PublicKeyTypes,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.files.regular_file import read_regular

DAYS = 90
"""Validity of a certificate."""
BACKDATED = timedelta(minutes=5)
"""How long before now it is valid already, for machines whose clocks are a little slow."""
MAX_BYTES = 1 << 20
"""Most bytes that are read of the authority's files."""


@dataclass(frozen=True)
class CertificateRequest:
    """A request whose sender has the key that it names. Of all else that it may ask for, only the name is looked at."""

    name: str
    """Common name that it asks for; empty where it has none, or several."""
    key: ec.EllipticCurvePublicKey
    """On the curve P-256."""

    @classmethod
    def read(cls, pem: bytes) -> CertificateRequest:
        """Read a request (PEM), and check its signature.

        Raises:
            ProtocolError: It is none, not by the key that it names, or the key is of another kind.
        """
        try:
            found = x509.load_pem_x509_csr(pem)
            is_signed = found.is_signature_valid
            key = found.public_key()
            names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise ProtocolError("that is no request for a certificate") from error
        if not is_signed:
            raise ProtocolError("the request for a certificate is not signed by the key that it is for")
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ProtocolError("the request for a certificate is for a key that is none of the curve P-256")
        return cls(str(names[0].value) if len(names) == 1 else "", key)

    @property
    def key_bytes(self) -> bytes:
        """The public key, in DER."""
        return public_bytes(self.key)


class Authority:
    """Signs by ``ca.key`` in the folder ``certificates``, whose ``ca.pem`` may hold further authorities.

    Raises:
        ConfigError: A file is missing or no authority's, they do not belong together, or the authority has expired.
    """

    def __init__(self, certificates: Path) -> None:
        file = certificates / "ca.key"
        if not file.exists():
            raise ConfigError(f"{certificates}: holds no ca.key, by which certificates could be made")
        self.certificates = certificates
        self.pem = read_authority(certificates)
        """Content of ca.pem."""
        try:
            self._key = load_pem_private_key(_read(file), password=None)
            trusted = x509.load_pem_x509_certificates(self.pem)
            mine = public_bytes(self._key.public_key())
            own = [found for found in trusted if public_bytes(found.public_key()) == mine]
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{file}: not an authority's key (PEM, without a password): {error}") from error
        if not own:
            raise ConfigError(f"{file}: not the key of an authority in {certificates / 'ca.pem'}")
        self._certificate = own[0]
        if datetime.now(timezone.utc) >= self._certificate.not_valid_after_utc:
            ended = self._certificate.not_valid_after_utc
            raise ConfigError(f"{certificates / 'ca.pem'}: the authority has expired on {ended:%Y-%m-%d}")

    def certify(self, name: str, key: ec.EllipticCurvePublicKey) -> bytes:
        """Return a silo's certificate (PEM) for this common name and key, valid for ``DAYS``."""
        now = datetime.now(timezone.utc).replace(microsecond=0)
        usage = dict.fromkeys(_USAGES, False) | {"digital_signature": True}
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(self._identifier(), critical=False)
        )
        signing = cast("CertificateIssuerPrivateKeyTypes", self._key)
        digest = None if isinstance(signing, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else SHA256()
        return builder.sign(signing, digest).public_bytes(Encoding.PEM)

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        """Return the identifier that the authority gives itself, or of its key where it gives itself none."""
        try:
            own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            key = cast("CertificateIssuerPublicKeyTypes", self._certificate.public_key())
            return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def read_authority(certificates: Path) -> bytes:
    """Return the content of ``ca.pem`` in the folder; raise :class:`ConfigError` where it cannot be read."""
    return _read(certificates / "ca.pem")


def public_bytes(key: PublicKeyTypes) -> bytes:
    """Return a public key in DER."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(file: Path) -> bytes:
    try:
        return read_regular(file, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); `bash run/make_certs.sh FOLDER NUM_SILOS HOST` makes an"
            " authority"
        ) from error
