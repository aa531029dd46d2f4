"""Who may call a server now: by certificate, list of members and token, whose files are read again while it runs."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from fedml_dapper.credentials import ADMIN, CredentialFiles
from fedml_dapper.errors import ConfigError, printable
from fedml_dapper.operations import (
    AuditLog,
    Certificate,
    Membership,
    MembershipFile,
    Sightings,
    certificate_of,
)
from fedml_dapper.platform.secure_grpc.endpoint import CALL_SECONDS, TOKEN_KEY
from fedml_dapper.platform.secure_grpc.link import Link

LOGGER = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
"""How often files are looked at."""
MAX_NOTED = 100
"""Of the calls and members of one change, each with an entry of its own in log and audit log."""
_SLACK_SECONDS = 60.0
"""gRPC rounds deadlines on their way."""


class RefusedError(Exception):
    """A call that ends with this gRPC status; ``str()`` is what the log and the silo are told."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, eq=False)
class OpenCall:
    """A call that goes on, and what it was made with."""

    context: grpc.ServicerContext
    certificate: Certificate
    token: str
    is_admins: bool
    """Whether it is one that an admin alone may make, and no silo."""

    @property
    def name(self) -> str:
        """Whose certificate it is; printable."""
        return printable(self.certificate.name)


class Doorkeeper:
    """Admits calls, and ends them when a change in the files takes back what they were admitted by.

    A name that no certificate may call with any longer is reported once to ``cut_off``. Safe to use from any thread.
    """

    def __init__(
        self, credentials: CredentialFiles, members_file: Path | None, links: Mapping[str, Link],
        audit: AuditLog, cut_off: Callable[[Link], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
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
        self._sightings: Sightings | None = None
        self._let_in = set(links)
        """Names that a certificate may call with."""
        if members_file is not None:
            self._members_file = MembershipFile(members_file)
            self._sightings = Sightings(members_file)
            self._members = self._members_file.read()
            self._let_in = self._names_let_in()

    @contextmanager
    def admitted(self, context: grpc.ServicerContext, is_admins: bool = False) -> Iterator[tuple[Link, OpenCall]]:
        """Whose call it is. Raises :class:`RefusedError`, and :class:`SiloBusyError` where there are too many."""
        call = OpenCall(context, shown_certificate(context), _shown_token(context), is_admins)
        with self._lock:
            self._open.add(call)
        try:
            link = self._check(call)
            if context.time_remaining() > CALL_SECONDS + _SLACK_SECONDS:
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{link.name} calls without a deadline that is near enough"
                )
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
        """``act`` if the call still may go on, so that nothing of a silo is heard of after it was cut off.

        Raises :class:`RefusedError` if not.
        """
        with self._lock:
            self._check(call)
            act()

    def look(self) -> None:
        """Read again what has changed on the disk, and end calls that may no longer go on; at most every so often."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        are_new = self._credentials.renew()
        before = self._members
        members = None if self._members_file is None else self._members_file.read()
        ended: list[tuple[str, str]] = []
        with self._lock:
            self._members = members
            for call in list(self._open):
                if (reason := self._refusal(call)) is not None:
                    call.context.cancel()
                    self._open.discard(call)
                    ended.append((call.name, reason))
            let_in = self._names_let_in()
            cut_off = sorted(self._let_in - let_in)
            for name in cut_off:
                self._cut_off(self._links[name])
            self._let_in = let_in
        if are_new:
            self._audit.record("credentials", authorities=self._credentials.current.authority_digest)
        if members is not before:
            self._note_changes(before, members)
        self._note_ended(ended, cut_off)
        if self._sightings is not None:
            self._sightings.save()

    def close(self) -> None:
        """Write down who was seen."""
        if self._sightings is not None:
            self._sightings.save(at_once=True)

    def _note_changes(self, before: Membership | None, now: Membership | None) -> None:
        """Into the audit log, which certificates may call and could not before, and the other way round."""
        allowed = [
            {one.fingerprint for one in found.members if one.revoked is None} if found is not None else set()
            for found in (before, now)
        ]
        changed = sorted(allowed[0] ^ allowed[1])
        for fingerprint in changed[:MAX_NOTED]:
            one = next(found.find(fingerprint) for found in (now, before) if found and found.find(fingerprint))
            assert one is not None
            event = "member_added" if fingerprint in allowed[1] else "member_revoked"
            self._audit.record(event, name=one.name, fingerprint=fingerprint, reason=one.reason)
        if len(changed) > MAX_NOTED:
            self._audit.record("more_members_changed", number=len(changed) - MAX_NOTED)

    def _note_ended(self, ended: Sequence[tuple[str, str]], cut_off: Sequence[str]) -> None:
        for name, reason in ended[:MAX_NOTED]:
            LOGGER.warning("a call of %s is cut off: %s", name, reason)
            self._audit.record("call_ended", name=name, reason=reason)
        if len(ended) > MAX_NOTED:
            self._audit.record("more_calls_ended", number=len(ended) - MAX_NOTED)
        for name in cut_off:
            LOGGER.warning("%s is cut off: no certificate of it may call any longer", name)
            self._audit.record("cut_off", name=name)

    def _names_let_in(self) -> set[str]:
        if self._members is None:
            return set(self._links)
        return {member.name for member in self._members.members if member.is_allowed} & self._links.keys()

    def _refusal(self, call: OpenCall) -> str | None:
        """Why the call may not go on; None where it may."""
        try:
            self._check(call)
        except RefusedError as refusal:
            return str(refusal)
        return None

    def _check(self, call: OpenCall) -> Link:
        """Raises :class:`RefusedError` unless the call is one that may be made now."""
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
        members = self._members
        refusal = None if members is None else members.refusal(certificate)
        if refusal is None and certificate.is_expired:
            refusal = f"has expired on {certificate.expires:%Y-%m-%d}"
        if refusal is not None:
            reason = f"the certificate {certificate.fingerprint[:16]} of {link.name} {refusal}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        tokens = self._credentials.current.tokens
        if tokens and not any(hmac.compare_digest(call.token.encode(), token.encode()) for token in tokens):
            reason = f"{link.name} shows {'another' if call.token else 'no'} token; the server's is asked for"
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, reason)
        if self._sightings is not None:
            self._sightings.note(certificate.fingerprint)
        return link


def shown_certificate(context: grpc.ServicerContext) -> Certificate:
    """The certificate that a call was made with. Raises :class:`RefusedError` where it cannot be read."""
    shown = context.auth_context().get("x509_pem_cert", ())
    try:
        return certificate_of(shown[0] if shown else b"")
    except ConfigError as error:
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"the call shows {error}") from error


def _shown_token(context: grpc.ServicerContext) -> str:
    return str(dict(context.invocation_metadata()).get(TOKEN_KEY, ""))
