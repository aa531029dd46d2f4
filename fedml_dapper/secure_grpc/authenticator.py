"""Access control of a server by certificate, list of members and token, whose files are read again while it runs."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from fedml_dapper.errors import ConfigError, printable
from fedml_dapper.operations import (
    AuditLog,
    Certificate,
    LastSeen,
    Membership,
    MembershipFile,
    certificate_of,
)
from fedml_dapper.operations.credentials import ADMIN, CredentialFiles
from fedml_dapper.secure_grpc.endpoint import CALL_SECONDS, TOKEN_KEY
from fedml_dapper.secure_grpc.link import Link
from fedml_dapper.secure_grpc.noted_changes import note_changes, note_ended

LOOK_SECONDS = 0.2
"""Shortest time between two looks at the files."""
_SLACK_SECONDS = 60.0
"""By how much a call's deadline may exceed ``CALL_SECONDS``, since gRPC rounds deadlines on their way."""


class RefusedError(Exception):
    """Refusal of a call, with its gRPC status; the message is for the log and the silo."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, eq=False)
class OpenCall:
    """Open call, with the certificate and token that it was made with."""

    context: grpc.ServicerContext
    certificate: Certificate
    token: str
    is_admins: bool
    """Whether the call is one that an admin alone may make."""

    @property
    def name(self) -> str:
        """Name in the certificate, made printable."""
        return printable(self.certificate.name)


class Authenticator:
    """Admits calls, and ends open ones when a change in the files no longer admits them. Safe to use from any thread.

    Args:
        credentials: Files of the server's certificate, authorities and tokens.
        members_file: List of the certificates that may call; without one all of the authorities may.
        links: Silos by the name in their certificates.
        audit: Log of calls and changes.
        cut_off: Called once for a silo of which no certificate may call any longer.
        clock: Seconds, for the time between two looks at the files.
    """

    def __init__(
        self,
        credentials: CredentialFiles,
        members_file: Path | None,
        links: Mapping[str, Link],
        audit: AuditLog,
        cut_off: Callable[[Link], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._links = links
        self._admin = Link(0, ADMIN, 0, clock)
        self._clock = clock
        self._audit = audit
        self._cut_off = cut_off
        self._lock = threading.RLock()
        self._open: set[OpenCall] = set()
        self._looked = float("-inf")
        self._members_file: MembershipFile | None = None
        self._members: Membership | None = None
        self._last_seen: LastSeen | None = None
        self._allowed_names = set(links)
        """Names with a certificate that may call."""
        if members_file is not None:
            self._members_file = MembershipFile(members_file)
            self._last_seen = LastSeen(members_file)
            self._members = self._members_file.read()
            self._allowed_names = self._find_allowed_names()

    @contextmanager
    def admitted(self, context: grpc.ServicerContext, is_admins: bool = False) -> Iterator[tuple[Link, OpenCall]]:
        """Admit a call for the length of the block, and provide its silo's link and the call.

        Raises:
            RefusedError: The call may not be made.
            SiloBusyError: The silo calls too often.
        """
        call = OpenCall(context, shown_certificate(context), shown_token(context), is_admins)
        with self._lock:  # before it is checked, so that a change of the files in between ends it, too
            self._open.add(call)
        try:
            link = self._check(call)
            check_deadline(link.name, context.time_remaining())
            link.count_call()
            if link.is_new_connection(context.peer()):
                self._audit.record(
                    "connected", link.name, fingerprint=call.certificate.fingerprint, peer=context.peer()
                )
            yield link, call
        finally:
            with self._lock:
                self._open.discard(call)

    def while_admitted(self, call: OpenCall, act: Callable[[], None]) -> None:
        """Call ``act`` if the call may still go on, so that nothing of a silo is accepted after it was cut off.

        Raises:
            RefusedError: The call may not go on.
        """
        with self._lock:
            self._check(call)
            act()

    def look(self) -> None:
        """Read changed files, and end calls that may no longer go on; at most once in ``LOOK_SECONDS``."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        are_new = self._credentials.renew()
        before = self._members
        members = None if self._members_file is None else self._members_file.read()
        ended: list[tuple[str, str]] = []  # name and reason
        with self._lock:  # under one lock, so that no message of a silo is accepted after it was cut off
            self._members = members
            for call in list(self._open):
                if (reason := self._refusal(call)) is not None:
                    call.context.cancel()
                    self._open.discard(call)
                    ended.append((call.name, reason))
            allowed_names = self._find_allowed_names()
            cut_off = sorted(self._allowed_names - allowed_names)
            for name in cut_off:
                self._cut_off(self._links[name])
            self._allowed_names = allowed_names
        if are_new:
            self._audit.record("credentials", authorities=self._credentials.current.authority_digest)
        if members is not before:
            note_changes(self._audit, before, members)
        note_ended(self._audit, ended, cut_off)
        if self._last_seen is not None:
            self._last_seen.save()

    def close(self) -> None:
        """Save when each certificate was last seen."""
        if self._last_seen is not None:
            self._last_seen.save(at_once=True)

    def _find_allowed_names(self) -> set[str]:
        if self._members is None:
            return set(self._links)
        return {member.name for member in self._members.members if member.is_allowed} & self._links.keys()

    def _refusal(self, call: OpenCall) -> str | None:
        """Return why the call may not go on; None where it may."""
        try:
            self._check(call)
        except RefusedError as refusal:
            return str(refusal)
        return None

    def _check(self, call: OpenCall) -> Link:
        """Return the silo's link, or raise :class:`RefusedError` where the call may not be made now."""
        link = self._links.get(call.certificate.name)
        certificate = call.certificate
        if call.is_admins and certificate.name != ADMIN:
            reason = f"orders are for the certificate of `{ADMIN}` alone; this is that of `{call.name}`"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        if call.is_admins:
            link = self._admin
        if link is None:
            reason = f"the certificate of `{call.name}` is no silo's of this federation of {len(self._links)}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        check_admission(link.name, certificate, call.token, self._members, self._credentials.current.tokens)
        if self._last_seen is not None:
            self._last_seen.note(certificate.fingerprint)
        return link


def check_admission(
    name: str, certificate: Certificate, token: str, members: Membership | None, tokens: Sequence[str]
) -> None:
    """Check that a certificate that bears a right ``name`` may be used now, and that the caller has a token.

    Raises:
        RefusedError: It is expired, not in the list of ``members``, or none of ``tokens`` is shown.
    """
    refusal = None if members is None else members.refusal(certificate)
    if refusal is None and certificate.is_expired:
        refusal = f"has expired on {certificate.expires:%Y-%m-%d}"
    if refusal is not None:
        reason = f"the certificate {certificate.fingerprint[:16]} of {name} {refusal}"
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
    if tokens and not any(hmac.compare_digest(token.encode(), one.encode()) for one in tokens):
        reason = f"{name} shows {'another' if token else 'no'} token; the server's is asked for"
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, reason)


def check_deadline(name: str, seconds_left: float | None) -> None:
    """Check that a call of ``name`` ends by itself, however slowly its caller reads or writes.

    Raises:
        RefusedError: Its deadline is later than ours are, or it has none.
    """
    if seconds_left is None or seconds_left > CALL_SECONDS + _SLACK_SECONDS:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"{name} calls without a deadline that is near enough")


def shown_certificate(context: grpc.ServicerContext) -> Certificate:
    """Read the certificate that a call was made with.

    Raises:
        RefusedError: The certificate cannot be read.
    """
    shown = context.auth_context().get("x509_pem_cert", ())
    try:
        return certificate_of(shown[0] if shown else b"")
    except ConfigError as error:
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"the call shows {error}") from error


def shown_token(context: grpc.ServicerContext) -> str:
    return str(dict(context.invocation_metadata()).get(TOKEN_KEY, ""))
