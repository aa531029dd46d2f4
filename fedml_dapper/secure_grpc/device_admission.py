"""Access control of a server of devices that call, by certificate, list of members and token.

The files are read again while it runs. Nothing is held of a device that does not call but where it called from last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedml_dapper.errors import printable
from fedml_dapper.operations import AuditLog, Certificate, LastSeen, Membership, MembershipFile, RateLimiter
from fedml_dapper.operations.credentials import ADMIN, CredentialFiles
from fedml_dapper.operations.peers import host_of
from fedml_dapper.secure_grpc.authenticator import (
    LOOK_SECONDS,
    RefusedError,
    check_admission,
    check_deadline,
    shown_certificate,
    shown_token,
)
from fedml_dapper.secure_grpc.noted_changes import note_changes, note_ended

LOGGER = logging.getLogger(__name__)
CALLS_AT_ONCE = 20.0
CALLS_PER_SECOND = 1.0
"""Calls that one device may make, at once and per second."""
STRANGER = "stranger"
"""Name in the audit log of callers that are no device's: one for all, as they could invent any number of names."""


@dataclass(eq=False)
class OpenDeviceCall:
    """Open call of a device, or of an admin, with what it was made with."""

    certificate: Certificate
    token: str
    rank: int
    """The device's; 0 for an admin."""
    task: asyncio.Task[Any] | None
    """What answers it."""
    ended: str | None = None
    """Why it was ended from here; None where it was not."""

    def end(self, reason: str) -> None:
        """End the call; its task is cancelled, and is to say why."""
        self.ended = reason
        if self.task is not None:
            self.task.cancel()


class DeviceAdmission:
    """Admits calls, and ends open ones when a change in the files no longer admits them; for one event loop.

    Args:
        credentials: Files of the server's certificate, authorities and tokens.
        members_file: List of the certificates that may call; without one all of the authorities may.
        num_devices: Certificates named ``silo-1`` up to this number may call.
        audit: Log of calls and changes.
        cut_off: Called with the rank of a device that is off the list: no certificate of it may call any longer.

    Raises:
        ConfigError: The list is missing or unusable.
    """

    def __init__(
        self,
        credentials: CredentialFiles,
        members_file: Path | None,
        num_devices: int,
        audit: AuditLog,
        cut_off: Callable[[int], None],
    ) -> None:
        self._credentials = credentials
        self._num_devices = num_devices
        self._audit = audit
        self._cut_off = cut_off
        self._members_file = None if members_file is None else MembershipFile(members_file)
        self._last_seen = None if members_file is None else LastSeen(members_file)
        self._members: Membership | None = None if self._members_file is None else self._members_file.read()
        self._allowed = self._ranks_allowed()
        self._open: set[OpenDeviceCall] = set()
        self._limiters: dict[int, RateLimiter] = {}
        self._hosts: dict[int, str] = {}
        """Where each device called from last."""
        self.refused_strangers = 0
        """Calls with certificates that are no device's."""

    @asynccontextmanager
    async def admitted(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[OpenDeviceCall]:
        """Admit a device's call for the length of the block, in which its task may be cancelled.

        Raises:
            RefusedError: It may not call now, calls too often, or was ended.
        """
        certificate = shown_certificate(context)
        rank = self._rank_of(certificate)
        if rank is None:
            name = printable(certificate.name)
            reason = f"the certificate of `{name}` is no device's of this federation of {self._num_devices}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        call = OpenDeviceCall(certificate, shown_token(context), rank, asyncio.current_task())
        self.check(call)
        check_deadline(certificate.name, context.time_remaining())
        if not self._limiters.setdefault(rank, RateLimiter(CALLS_AT_ONCE, CALLS_PER_SECOND)).take():
            reason = f"{certificate.name} calls more than {CALLS_PER_SECOND:g} times a second"
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        async with self._kept_open(call):
            await self._note_host(call, context.peer())
            yield call

    @asynccontextmanager
    async def admitted_for_orders(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[None]:
        """Admit the call of whoever gives orders for the length of the block; whether it is an admin is not checked.

        Raises:
            RefusedError: It may not call now, or was ended.
        """
        call = OpenDeviceCall(shown_certificate(context), shown_token(context), 0, asyncio.current_task())
        self.check(call)
        async with self._kept_open(call):
            yield

    def check(self, call: OpenDeviceCall) -> None:
        """Raise :class:`RefusedError` where the certificate or token of a call does not count now."""
        certificate = call.certificate
        check_admission(certificate.name, certificate, call.token, self._members, self._credentials.current.tokens)
        if self._last_seen is not None:
            self._last_seen.note(certificate.fingerprint)

    def name_of_caller(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
        """Return the caller's name for the audit log, and count strangers."""
        try:
            certificate = shown_certificate(context)
        except RefusedError:
            certificate = None
        if certificate is not None and (certificate.name == ADMIN or self._rank_of(certificate) is not None):
            return certificate.name
        self.refused_strangers += 1
        return STRANGER

    async def keep_looking(self) -> None:
        """Read changed files, and end calls that may no longer go on, for ever; run it beside the server."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    def close(self) -> None:
        """Save when each certificate was last seen."""
        if self._last_seen is not None:
            self._last_seen.save(at_once=True)

    async def _look(self) -> None:
        are_new = await asyncio.to_thread(self._credentials.renew)
        before = self._members
        if self._members_file is not None:
            self._members = await asyncio.to_thread(self._members_file.read)
        ended: list[tuple[str, str]] = []
        for call in list(self._open):
            if (reason := self._refusal(call)) is not None:
                self._open.discard(call)
                call.end(reason)
                ended.append((call.certificate.name, reason))
        gone: list[int] = []
        if self._members is not before:  # not at every look, as there may be thousands
            allowed = self._ranks_allowed()
            gone = sorted(self._allowed - allowed)
            self._allowed = allowed
            for rank in gone:
                self._cut_off(rank)
        await asyncio.to_thread(self._write_down, are_new, before, self._members, ended, gone)

    def _write_down(
        self,
        are_new: bool,
        before: Membership | None,
        now: Membership | None,
        ended: list[tuple[str, str]],
        gone: list[int],
    ) -> None:
        if are_new:
            self._audit.record("credentials", authorities=self._credentials.current.authority_digest)
        if now is not before:
            note_changes(self._audit, before, now)
        note_ended(self._audit, ended, [f"silo-{rank}" for rank in gone])
        if self._last_seen is not None:
            self._last_seen.save()

    @asynccontextmanager
    async def _kept_open(self, call: OpenDeviceCall) -> AsyncIterator[None]:
        self._open.add(call)
        try:
            yield
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, call.ended) from None
        finally:
            self._open.discard(call)

    async def _note_host(self, call: OpenDeviceCall, peer: str) -> None:
        """Record a device that calls for the first time or from elsewhere; each of its calls is a connection."""
        host = host_of(peer)
        if self._hosts.get(call.rank) != host:
            self._hosts[call.rank] = host
            certificate = call.certificate
            fields = {"fingerprint": certificate.fingerprint, "peer": peer}
            await asyncio.to_thread(self._audit.record, "connected", certificate.name, **fields)

    def _refusal(self, call: OpenDeviceCall) -> str | None:
        """Return why the call may not go on; None where it may."""
        try:
            self.check(call)
        except RefusedError as refusal:
            return str(refusal)
        return None

    def _ranks_allowed(self) -> set[int]:
        """Return the devices that have a certificate on the list that may call; none where there is no list."""
        if self._members is None:
            return set()
        ranks = {self._rank_in(member.name) for member in self._members.members if member.is_allowed}
        return {rank for rank in ranks if rank is not None}

    def _rank_of(self, certificate: Certificate) -> int | None:
        return self._rank_in(certificate.name)

    def _rank_in(self, name: str) -> int | None:
        """Return the rank of the device of this ``name``; None where it is no device's."""
        kind, _, number = name.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10 and number == str(int(number))
        return int(number) if kind == "silo" and is_number and 1 <= int(number) <= self._num_devices else None
