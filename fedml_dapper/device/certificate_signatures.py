"""Signatures in secure sums, made and verified by the certificates that silos have for gRPC."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.operations import Certificate, Membership, MembershipFile
from fedml_dapper.operations.credentials import CredentialFiles, Credentials

_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.MAX_LENGTH)


class CertifiedWitness:
    """Verifies silos' signatures, by certificates of the federation's authority that bear the silo's name.

    The authority is read from this process's own file; a server's word does not count. Where there is a list of
    ``known`` certificates, the silo's has to be in it, too.

    Raises:
        ConfigError: No certificate in the authority's file is an authority's.
    """

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials, known: Membership | None = None) -> None:
        self._config = config
        self._known = known
        trusted = x509.load_pem_x509_certificates(credentials.authority)
        self._authorities = [found for found in trusted if _is_authority(found)]
        if not self._authorities:
            raise ConfigError(f"{config.certificates / 'ca.pem'}: no certificate in it is an authority's (CA:TRUE)")

    def check(self, client: int, certificate: bytes, statement: bytes, signature: bytes) -> None:
        """Verify that a client has signed a statement; see ``secure_sum.Witness``. ``certificate`` is in DER.

        Raises:
            ProtocolError: The certificate is not valid for this client, or the signature is not by it.
        """
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
        """Raise an error of ``cryptography`` unless one of the authorities issued the certificate."""
        *others, last = self._authorities
        for authority in others:
            try:
                found.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return
        found.verify_directly_issued_by(last)


class CertifiedIdentity(CertifiedWitness):
    """Identity of a silo, which signs by the private key of its certificate."""

    def __init__(self, config: SecureGrpcConfig, credentials: Credentials, known: Membership | None = None) -> None:
        super().__init__(config, credentials, known)
        self._key = load_pem_private_key(credentials.key, password=None)
        self.certificate = x509.load_pem_x509_certificate(credentials.certificate).public_bytes(Encoding.DER)

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement by ECDSA, Ed25519 or RSA-PSS, whichever the key is for.

        Raises:
            ConfigError: The key is of another kind.
        """
        match self._key:
            case ec.EllipticCurvePrivateKey():
                return self._key.sign(statement, ec.ECDSA(SHA256()))
            case ed25519.Ed25519PrivateKey():
                return self._key.sign(statement)
            case rsa.RSAPrivateKey():
                return self._key.sign(statement, _PSS, SHA256())
        raise ConfigError("privacy.secure_aggregation: the key of this silo's certificate signs nothing; use an EC key")


class IdentityFiles:
    """Files of a silo's identity: its certificate and key, the authority, and the list of known certificates.

    Raises:
        ConfigError: A file is missing or unusable at the start. Later on its last usable content counts.
    """

    def __init__(self, config: SecureGrpcConfig, rank: int, known: Path | None) -> None:
        self._config = config
        self._credentials = CredentialFiles(config, rank)
        self._known = None if known is None else MembershipFile(known)

    def read(self) -> CertifiedIdentity:
        """Return the identity that the files hold now."""
        self._credentials.renew()
        known = None if self._known is None else self._known.read()
        return CertifiedIdentity(self._config, self._credentials.current, known)


def _is_authority(found: x509.Certificate) -> bool:
    try:
        return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _verify(key: object, signature: bytes, statement: bytes) -> None:
    """Raise :class:`InvalidSignature` unless the signature is by the private key that belongs to ``key``."""
    match key:
        case ec.EllipticCurvePublicKey():
            key.verify(signature, statement, ec.ECDSA(SHA256()))
        case ed25519.Ed25519PublicKey():
            key.verify(signature, statement)
        case rsa.RSAPublicKey():
            key.verify(signature, statement, _PSS, SHA256())
        case _:
            raise InvalidSignature
