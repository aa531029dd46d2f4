"""Whose word counts in a secure sum: who has a certificate of the federation's authority, in its own name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.device.certificate_signatures import CertifiedIdentity, CertifiedWitness, IdentityFiles
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.operations import add_members, read_certificate
from fedml_dapper.operations.credentials import CredentialFiles, Credentials, read_credentials
from fedml_dapper.platform.server_manager import DapperServerManager

from .authorities import Authority


@pytest.fixture
def silo_1(config: SecureGrpcConfig) -> CertifiedIdentity:
    return CertifiedIdentity(config, read_credentials(config, 1))


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_everybody_knows_what_a_silo_has_signed(config: SecureGrpcConfig, silo_1: CertifiedIdentity, rank: int) -> None:
    witness = CertifiedWitness(config, read_credentials(config, rank))
    signature = silo_1.sign(b"a list")
    witness.check(0, silo_1.certificate, b"a list", signature)
    with pytest.raises(ProtocolError, match="client 0 has not signed this: the server told silo-1 something else"):
        witness.check(0, silo_1.certificate, b"another list", signature)
    with pytest.raises(ProtocolError, match="client 0 has not signed this"):
        witness.check(0, silo_1.certificate, b"a list", signature[:-1])


def test_a_server_whose_files_are_half_replaced_checks_by_those_before(
    config: SecureGrpcConfig, silo_1: CertifiedIdentity, other_certificates: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(config.certificates, tmp_path / "certs")
    half = config.model_copy(update={"certificates": folder})
    server = object.__new__(DapperServerManager)
    server._experiment = SimpleNamespace(settings=SimpleNamespace(comm_args=SimpleNamespace(dapper_grpc=half)))  # type: ignore[assignment]
    server._credentials = CredentialFiles(half, 0)
    shutil.copy(other_certificates / "server.pem", folder)
    with pytest.raises(ConfigError):
        read_credentials(half, 0)
    server._witness().check(0, silo_1.certificate, b"a list", silo_1.sign(b"a list"))


def test_a_certificate_counts_for_its_own_client(config: SecureGrpcConfig, silo_1: CertifiedIdentity) -> None:
    witness = CertifiedWitness(config, read_credentials(config, 2))
    with pytest.raises(ProtocolError, match="client 1: its certificate bears the name silo-1, not silo-2"):
        witness.check(1, silo_1.certificate, b"a list", silo_1.sign(b"a list"))
    server = CertifiedIdentity(config, read_credentials(config, 0))
    with pytest.raises(ProtocolError, match="bears the name server, not silo-1"):
        witness.check(0, server.certificate, b"a list", server.sign(b"a list"))


def test_a_server_s_own_authority_is_none(
    config: SecureGrpcConfig, silo_1: CertifiedIdentity, other_certificates: Path
) -> None:
    """It makes certificates of every name, and no silo has its authority."""
    theirs = config.model_copy(update={"certificates": other_certificates})
    impostor = CertifiedIdentity(theirs, read_credentials(theirs, 1))
    witness = CertifiedWitness(config, read_credentials(config, 2))
    for certificate in (impostor.certificate, b"", b"no certificate", silo_1.certificate[:-1]):
        with pytest.raises(ProtocolError, match="client 0: the certificate that it is said to have is none of this"):
            witness.check(0, certificate, b"a list", impostor.sign(b"a list"))


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-384", "Ed25519", "RSA"],
)
def test_keys_of_any_usual_kind_sign(config: SecureGrpcConfig, key: PrivateKeyTypes) -> None:
    authority = Authority()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = Credentials("silo-1", authority.pem, authority.certify("silo-1", key), pem)
    identity = CertifiedIdentity(config, credentials)
    identity.check(0, identity.certificate, b"a list", identity.sign(b"a list"))
    with pytest.raises(ProtocolError, match="has not signed"):
        identity.check(0, identity.certificate, b"another", identity.sign(b"a list"))


def test_a_certificate_counts_while_it_is_valid(config: SecureGrpcConfig) -> None:
    authority = Authority()
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = Credentials("silo-1", authority.pem, authority.certify("silo-1", key, days=-1), pem)
    identity = CertifiedIdentity(config, credentials)
    with pytest.raises(ProtocolError, match="client 0: the certificate of silo-1 is not valid now"):
        identity.check(0, identity.certificate, b"a list", identity.sign(b"a list"))


def test_any_of_several_authorities_counts(config: SecureGrpcConfig, silo_1: CertifiedIdentity) -> None:
    """As while one takes the place of another."""
    own = read_credentials(config, 2)
    for authorities in (own.authority + Authority().pem, Authority().pem + own.authority):
        CertifiedWitness(config, replace(own, authority=authorities)).check(
            0, silo_1.certificate, b"a list", silo_1.sign(b"a list")
        )


def test_a_silo_sums_with_the_certificates_that_it_knows(
    config: SecureGrpcConfig, silo_1: CertifiedIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever makes certificates can make up silos; a list that the server cannot write stands against that."""
    known = tmp_path / "known.json"
    add_members(known, [read_certificate(config.certificates / "silo-2.pem")])
    files = IdentityFiles(config, 2, known)
    with pytest.raises(ProtocolError, match="client 0: the certificate of silo-1 is not in the list of members"):
        files.read().check(0, silo_1.certificate, b"a list", silo_1.sign(b"a list"))
    add_members(known, [read_certificate(config.certificates / "silo-1.pem")])
    files.read().check(0, silo_1.certificate, b"a list", silo_1.sign(b"a list"))
    known.write_text("half of a")
    files.read().check(0, silo_1.certificate, b"a list", silo_1.sign(b"a list"))
    assert "the list of members is of no use, the one before still counts" in caplog.text
    with pytest.raises(ConfigError, match="not a list of members"):
        IdentityFiles(config, 2, known)


def test_a_silo_s_certificate_among_the_authorities_makes_it_none(
    config: SecureGrpcConfig, silo_1: CertifiedIdentity
) -> None:
    own = read_credentials(config, 2)
    CertifiedWitness(config, replace(own, authority=own.certificate + own.authority)).check(
        0, silo_1.certificate, b"a list", silo_1.sign(b"a list")
    )
    with pytest.raises(ConfigError, match="no certificate in it is an authority's"):
        CertifiedWitness(config, replace(own, authority=own.certificate))


def test_a_certificate_of_no_known_version_is_none(config: SecureGrpcConfig, silo_1: CertifiedIdentity) -> None:
    """Which cryptography says by an error of its own."""
    odd = silo_1.certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x53", 1)
    assert odd != silo_1.certificate
    witness = CertifiedWitness(config, read_credentials(config, 2))
    with pytest.raises(ProtocolError, match="client 0: the certificate that it is said to have is none of this"):
        witness.check(0, odd, b"a list", silo_1.sign(b"a list"))
