"""Credentials of a process for gRPC: its certificate, its key, and the token that a federation may share.

They are tried out before a run starts, by a TLS handshake of the process with itself in memory. So a certificate that a
peer would refuse later (expired, of another authority or name) is reported at once, with the file to mend.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import read_regular

LOGGER = logging.getLogger(__name__)
ADMIN = "admin"
"""Common name of an operator's certificate."""
MIN_TOKEN_CHARACTERS = 16
MAX_TOKENS = 10
MAX_BYTES = 1 << 20
"""Most bytes that are read of a file with certificates, a key or tokens."""
_HELP = "`bash run/make_certs.sh FOLDER NUM_SILOS HOST` makes them for a trial, docs/security.md says more"


@dataclass(frozen=True)
class Credentials:
    """Certificate and key (PEM) that a process shows its peers, and the authority by which it checks theirs."""

    name: str
    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """Tokens of which a server accepts any from its callers; empty where it asks for none."""

    @property
    def token(self) -> str | None:
        """Token that this process sends: the first one."""
        return self.tokens[0] if self.tokens else None

    @property
    def authority_digest(self) -> str:
        """SHA-256 of ca.pem, in hexadecimal digits."""
        return hashlib.sha256(self.authority).hexdigest()


class CredentialFiles:
    """Credentials of the process of this rank, read again when their files change. Safe to use from any thread.

    Raises:
        ConfigError: See :func:`read_credentials`.
    """

    def __init__(self, config: SecureGrpcConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._lock = threading.Lock()
        self._stamps = self._read_stamps()
        self.current = read_credentials(config, rank)

    def renew(self) -> bool:
        """Read the files if they have changed; return whether the credentials are new.

        Where they are unusable, perhaps because only some of them are replaced yet, those that were read before still
        count, which is logged once.
        """
        with self._lock:
            stamps = self._read_stamps()
            if stamps == self._stamps:
                return False
            try:
                found = read_credentials(self._config, self._rank)
            except ConfigError as error:
                LOGGER.warning("new credentials are of no use, the ones before still count: %s", error)
                found = self.current
            if self._read_stamps() != stamps:  # somebody is still writing
                return False
            self._stamps = stamps
            if found == self.current:
                return False
            LOGGER.info("the credentials of %s have been read again", found.name)
            self.current = found
            return True

    def _read_stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        config = self._config
        name = self._config.name_of(self._rank)
        files = [config.certificates / file for file in ("ca.pem", f"{name}.pem", f"{name}.key")]
        return tuple(stamp(file) for file in (*files, *([config.token_file] if config.token_file else [])))


def stamp(file: Path) -> tuple[int, int, int] | None:
    """Return time, size and inode of a file, which differ when it was changed; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_credentials(config: SecureGrpcConfig, rank: int) -> Credentials:
    """Read the credentials of the process of this rank, and try them out.

    Raises:
        ConfigError: A file is missing, unreadable or would be refused by a peer, or a token is missing or weak.
    """
    edge = config.edge(rank)
    if rank == 0:
        shown_as: tuple[str | None, ...] = (config.server_host,)
    else:
        shown_as = (None,) if edge is None else (None, config.around(edge).server_host)
    return _read_as(config, config.name_of(rank), shown_as)


def read_admin_credentials(config: SecureGrpcConfig) -> Credentials:
    """Read the credentials of an operator, and try them out.

    Raises:
        ConfigError: See :func:`read_credentials`.
    """
    return _read_as(config, ADMIN, (None,))


def _read_as(config: SecureGrpcConfig, name: str, shown_as: Sequence[str | None]) -> Credentials:
    authority, certificate, key = (config.certificates / file for file in ("ca.pem", f"{name}.pem", f"{name}.key"))
    credentials = Credentials(name, _read(authority), _read(certificate), _read(key), _tokens(config))
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
        return read_regular(file, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {_HELP}") from error


def _tokens(config: SecureGrpcConfig) -> tuple[str, ...]:
    if config.token_file is not None:
        place = str(config.token_file)
        text = _read(config.token_file).decode(errors="replace")
        tokens = tuple(text.rstrip("\r\n").splitlines())
    elif config.token_variable is not None:
        place = f"environment variable {config.token_variable}"
        tokens = (os.environ.get(config.token_variable, ""),)
    else:
        return ()
    if not tokens or not all(_is_strong(token) for token in tokens):
        raise ConfigError(
            f"{place}: expected a token of {MIN_TOKEN_CHARACTERS} or more printable ASCII characters without spaces;"
            " `openssl rand -hex 32` makes one"
        )
    if len(tokens) > MAX_TOKENS:
        raise ConfigError(f"{place}: expected one token a line, and at most {MAX_TOKENS} of them")
    return tokens


def _is_strong(token: str) -> bool:
    return len(token) >= MIN_TOKEN_CHARACTERS and all("!" <= character <= "~" for character in token)


def _handshake_with_itself(authority: Path, certificate: Path, key: Path, host: str | None) -> list[str]:
    """Return the common names that a peer reads in the certificate of a server at ``host``, or of a client if None.

    Raises ``ssl.SSLError`` or ``ValueError`` where the peer would refuse it.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, password=_no_password)
    if host is not None:
        client.load_verify_locations(authority)
    else:
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        client.load_cert_chain(certificate, key, password=_no_password)
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(authority)
    upwards = ssl.MemoryBIO()
    downwards = ssl.MemoryBIO()
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
