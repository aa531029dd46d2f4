"""How a device joins by a code: it makes its own key, which never leaves it, and gets a certificate for it.

What the device is told is a host, and a code that whoever handed it out wrote down: the silo, a secret, and the
fingerprint of the federation's authority. Between the two may be anybody:

- **Another federation, or somebody who poses as one**, shows another authority. Its fingerprint is not the code's, and
  the device sends nothing.
- **Somebody in between who passes on the right authority**, which is public. The code's secret goes over a second
  connection, which trusts that authority alone: without a certificate of it for this host, there is none.
- **A silo of the same federation** has a certificate, but none for a server. Who holds the key of the server, or of an
  edge that has the same host, is trusted by every silo.
- **Somebody who reads what a killed device left.** Its key is its owner's alone. The code is not written down.

Key, certificate and authority come into place together, by one rename. Until then they are in a hidden folder beside
it, where a device that asks again finds the key that it has asked with before.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.section import check
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.files.atomic import FOR_ITS_OWNER, explained, written_whole
from fedml_dapper.files.locks import try_lock
from fedml_dapper.files.regular_file import read_regular
from fedml_dapper.operations.certificate import Certificate, certificate_of
from fedml_dapper.operations.credentials import MAX_BYTES, read_credentials
from fedml_dapper.operations.join_code import JoinCode, fingerprint_of
from fedml_dapper.operations.join_request import JoinRefusedError, JoinRequest, ask_for_certificate, fetch_authority


def join(address: str, code: JoinCode, folder: Path, http_proxy: str | None = None) -> Certificate:
    """Make ``folder`` with ca.pem, silo-RANK.key and silo-RANK.pem, and return the certificate.

    Args:
        address: HOST:PORT of ``fedml-dapper silos enroll``.
        code: What the administrator handed out.
        folder: One that is not there yet, or empty.
        http_proxy: Proxy on the way, as ``comm_args.dapper_grpc`` has it.

    Raises:
        ConfigError: The address or the proxy is none, ``folder`` holds something, or what was answered is of no use.
        JoinRefusedError: The service refuses the code.
        DapperError: The service is not there, of another federation, or will answer later.
        DataError: The files cannot be written.
    """
    folder = folder.resolve()
    _check_place(folder)
    values = {"server_address": address, "certificates": _place_beside(folder, code), "http_proxy": http_proxy}
    config = check(SecureGrpcConfig, values, where="HOST:PORT")
    authority = fetch_authority(config.server_address, config.http_proxy)
    if (shown := fingerprint_of(authority)) != code.fingerprint:
        raise DapperError(
            f"{address} shows another authority ({shown[:8]}...) than the code is for ({code.fingerprint[:8]}...): it"
            " is another federation, or somebody in between; nothing was sent"
        )
    with _unfinished(config.certificates, folder) as unfinished:
        key = _own_key(unfinished / f"{code.name}.key")
        request = JoinRequest(rank=code.rank, secret=code.secret, request=_request(code.name, key))
        try:
            certificate = ask_for_certificate(address, authority, request, config.http_proxy)
        except JoinRefusedError:
            shutil.rmtree(unfinished)
            raise
        for name, content in (("ca.pem", authority), (f"{code.name}.pem", certificate)):
            with written_whole(unfinished / name) as scratch:
                scratch.write_bytes(content)
        read_credentials(config, code.rank)
    return certificate_of(certificate)


def _check_place(folder: Path) -> None:
    """Raise :class:`ConfigError` where a rename could not put anything, before a code is spent for it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder.is_mount()):
        raise ConfigError(
            f"{folder}: is in use already, and a device joins into a folder of its own; name one that is not there yet"
            " by --certificates"
        )


def _place_beside(folder: Path, code: JoinCode) -> Path:
    return folder.with_name(f".{folder.name}.joining-{code.name}")


@contextmanager
def _unfinished(place: Path, folder: Path) -> Iterator[Path]:
    """Provide the folder ``place``, for this process alone, which becomes ``folder`` when the block ends."""
    with explained(folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not try_lock(lock, place):
                raise ConfigError(f"{folder}: another process joins into this folder; wait for its end, or end it")
            yield place
            place.rename(folder)
            _flush(folder.parent)
        finally:
            os.close(lock)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _own_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in ``file``, which is made where there is none."""
    if not file.exists():
        pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with written_whole(file, FOR_ITS_OWNER) as scratch:
            scratch.write_bytes(pem)
    try:
        key = load_pem_private_key(read_regular(file, MAX_BYTES), password=None)
    except ValueError as error:
        raise ConfigError(f"{file}: no key; remove the folder that it is in") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file}: a key of another kind than this program makes; remove the folder that it is in")
    return key


def _request(name: str, key: ec.EllipticCurvePrivateKey) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM).decode()
