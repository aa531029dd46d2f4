"""Who a process is across networks: its certificate, its key, and the token that a federation may share.

Everything is tried out before a run starts, by a TLS handshake of the process with itself in memory: what a peer would
refuse later, expired, of another authority, of another name, is said here with the file to mend.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError

MIN_TOKEN_CHARACTERS = 16
_HELP = "`bash run/make_certs.sh FOLDER NUM_SILOS HOST` makes them for a trial, docs/security.md says more"


@dataclass(frozen=True)
class Credentials:
    """What one process shows its peers, and what it checks theirs against (PEM)."""

    name: str
    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    token: str | None = field(default=None, repr=False)


def read_credentials(config: SecureGrpcConfig, rank: int) -> Credentials:
    """The credentials of the process of this rank, tried out.

    Raises :class:`ConfigError` for a file that is missing, unreadable or would be refused by a peer, and for a token
    that is missing or weak.
    """
    name, edge = config.name_of(rank), config.edge(rank)
    if rank == 0:
        shown_as: tuple[str | None, ...] = (config.server_host,)
    else:
        shown_as = (None,) if edge is None else (None, config.around(edge).server_host)
    authority, certificate, key = (config.certificates / file for file in ("ca.pem", f"{name}.pem", f"{name}.key"))
    credentials = Credentials(name, _read(authority), _read(certificate), _read(key), _token(config))
    try:
        shown = [_handshake_with_itself(authority, certificate, key, host) for host in shown_as]
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message.rstrip(".")
        raise ConfigError(f"{certificate}: peers with {authority.name} would refuse it: {reason}; {_HELP}") from error
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{certificate}: not a certificate that goes with {key.name} and {authority.name} ({error}); {_HELP}"
        ) from error
    if shown[0] != [name]:
        raise ConfigError(f"{certificate}: its common name is {', '.join(shown[0]) or 'missing'}, not {name}; {_HELP}")
    return credentials


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {_HELP}") from error


def _token(config: SecureGrpcConfig) -> str | None:
    if config.token_file is not None:
        place, token = str(config.token_file), _read(config.token_file).decode(errors="replace").rstrip("\r\n")
    elif config.token_variable is not None:
        place, token = f"environment variable {config.token_variable}", os.environ.get(config.token_variable, "")
    else:
        return None
    if len(token) < MIN_TOKEN_CHARACTERS or not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            f"{place}: expected a token of {MIN_TOKEN_CHARACTERS} or more printable ASCII characters without spaces;"
            " `openssl rand -hex 32` makes one"
        )
    return token


def _handshake_with_itself(authority: Path, certificate: Path, key: Path, host: str | None) -> list[str]:
    """Common names that a peer would read in the certificate, shown as a server's for ``host``, or as a client's.

    Raises ``ssl.SSLError`` or ``ValueError`` where the peer would refuse.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, password=_no_password)
    if host is not None:
        client.load_verify_locations(authority)
    else:
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.load_cert_chain(certificate, key, password=_no_password)
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(authority)
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_client = client.wrap_bio(downwards, upwards, server_hostname=host)
    at_server = server.wrap_bio(upwards, downwards, server_side=True)
    unfinished = [at_client, at_server]
    while unfinished:
        side = unfinished.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            unfinished.append(side)
    shown = (at_client if host is not None else at_server).getpeercert() or {}
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", shown.get("subject", ()))
    return [value for part in subject for key, value in part if key == "commonName"]


def _no_password() -> str:
    raise ValueError("the key is locked by a password; processes that start by themselves need one without")
