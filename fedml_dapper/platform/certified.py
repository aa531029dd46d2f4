"""Who has signed what in a secure sum, by the certificates that silos have already."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.credentials import CredentialFiles, Credentials
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.operations import Certificate, Membership, MembershipFile

_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.MAX_LENGTH)


class CertifiedWitness:
    """Takes a silo's word where it is signed by a certificate of the federation's authority that bears the silo's name.

    The authority is this process's own file, not what a server says it is. Where there is a list of ``known``
    certificates, the silo's has to be in it, too.
    """

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials, known: Membership | None = None) -> None:
        self._config = config
        self._known = known
        trusted = x509.load_pem_x509_certificates(credentials.authority)
        self._authorities = [found for found in trusted if _is_authority(found)]
        if not self._authorities:
            raise ConfigError(f"{config.certificates / 'ca.pem'}: no certificate in it is an authority's (CA:TRUE)")

    def check(self, client: int, certificate: bytes, statement: bytes, signature: bytes) -> None:
        """As ``secure_sum.Witness`` asks; ``certificate`` is DER."""
        name = self._config.name_of(client + 1)
        try:
            found = x509.load_der_x509_certificate(certificate)
            self._check_issued(found)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise ProtocolError(
                f"client {client}: the certificate that it is said to have is none of this federation's authority"
            ) from error
        shown = Certificate.of(found)
        if shown.name != name:
            bears = f"bears the name {shown.name}" if shown.name else "bears no single name"
            raise ProtocolError(f"client {client}: its certificate {bears}, not {name}")
        if self._known is not None and (refusal := self._known.refusal(shown)) is not None:
            raise ProtocolError(f"client {client}: the certificate of {name} {refusal} (silo_args.known)")
        if not found.not_valid_before_utc <= datetime.now(timezone.utc) < found.not_valid_after_utc:
            raise ProtocolError(f"client {client}: the certificate of {name} is not valid now")
        try:
            _verify(found.public_key(), signature, statement)
        except (InvalidSignature, ValueError) as error:
            raise ProtocolError(
                f"client {client} has not signed this: the server told {name} something else than this client, or made"
                " it up"
            ) from error

    def _check_issued(self, found: x509.Certificate) -> None:
        """Raises what ``cryptography`` does where no authority issued it."""
        *others, last = self._authorities
        for authority in others:
            try:
                found.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return
        found.verify_directly_issued_by(last)


class CertifiedIdentity(CertifiedWitness):
    """A silo's own, by its key."""

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials, known: Membership | None = None) -> None:
        super().__init__(config, credentials, known)
        self._key = load_pem_private_key(credentials.key, password=None)
        self.certificate = x509.load_pem_x509_certificate(credentials.certificate).public_bytes(Encoding.DER)

    def sign(self, statement: bytes) -> bytes:
        """By ECDSA, Ed25519 or RSA-PSS, as the key is."""
        match self._key:
            case ec.EllipticCurvePrivateKey():
                return self._key.sign(statement, ec.ECDSA(SHA256()))
            case ed25519.Ed25519PrivateKey():
                return self._key.sign(statement)
            case rsa.RSAPrivateKey():
                return self._key.sign(statement, _PSS, SHA256())
        raise ConfigError("privacy.secure_aggregation: the key of this silo's certificate signs nothing; use an EC key")


class IdentityFiles:
    """What a silo signs by, and whose word it takes, as its files are when it is asked.

    Raises :class:`ConfigError` for a file that is missing or of no use at the start; later the content before counts.
    """

    def __init__(self, config: SecureGrpcConfig, rank: int, known: Path | None) -> None:
        self._config = config
        self._credentials = CredentialFiles(config, rank)
        self._known = None if known is None else MembershipFile(known)

    def read(self) -> CertifiedIdentity:
        self._credentials.renew()
        known = None if self._known is None else self._known.read()
        return CertifiedIdentity(self._config, self._credentials.current, known)


def _is_authority(found: x509.Certificate) -> bool:
    try:
        return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _verify(key: object, signature: bytes, statement: bytes) -> None:
    """Raises :class:`InvalidSignature` unless it is the owner's of ``key``."""
    match key:
        case ec.EllipticCurvePublicKey():
            key.verify(signature, statement, ec.ECDSA(SHA256()))
        case ed25519.Ed25519PublicKey():
            key.verify(signature, statement)
        case rsa.RSAPublicKey():
            key.verify(signature, statement, _PSS, SHA256())
        case _:
            raise InvalidSignature
