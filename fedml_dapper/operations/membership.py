"""List of the certificates that may call a server: a file that the operator changes while the server runs.

    {"members": [
      {"fingerprint": "9f2c...", "name": "silo-3", "expires": "2027-02-22T10:00:00Z", "added": "2026-11-24T10:00:00Z"}
    ]}

A revoked certificate stays in the list, with ``revoked`` and a ``reason``: so the reason is known later, and it is not
added again by mistake. The server writes when each certificate called into a file beside it (:mod:`.last_seen`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.files.locks import locked
from fedml_dapper.files.regular_file import read_regular
from fedml_dapper.operations.certificate import Certificate
from fedml_dapper.operations.credentials import ADMIN, stamp
from fedml_dapper.operations.last_seen import LOCK_NAME

LOGGER = logging.getLogger(__name__)
MAX_BYTES = 8 << 20
"""Largest list, in bytes: some 25,000 members."""
MAX_REASON = 200
MIN_DIGITS = 8
"""Fewest leading digits by which a fingerprint may be named."""
_PATIENCE_SECONDS = 10.0
_NAME = re.compile(rf"(silo|edge)-[1-9][0-9]{{0,6}}|{ADMIN}")


class Member(BaseModel):
    """A certificate in the list."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the certificate."""
    name: str = Field(max_length=20)
    """Common name of the certificate: its silo, edge or operator."""
    expires: AwareDatetime
    added: AwareDatetime
    revoked: AwareDatetime | None = None
    """Time from which the certificate may not call; None where it was not revoked."""
    reason: str = Field(default="", max_length=MAX_REASON)
    """Why the certificate was revoked."""

    @field_validator("name")
    @classmethod
    def _known_kind(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected silo-RANK, edge-RANK or {ADMIN}")
        return name

    @property
    def is_allowed(self) -> bool:
        """Whether the certificate may call now."""
        return self.revoked is None and datetime.now(timezone.utc) < self.expires


class Membership(BaseModel):
    """All certificates of a list, revoked ones included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: tuple[Member, ...] = ()

    @field_validator("members")
    @classmethod
    def _each_once(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        counts = Counter(member.fingerprint for member in members)
        if twice := [fingerprint for fingerprint, count in counts.items() if count > 1]:
            raise ValueError(f"the certificate {twice[0][:16]} stands there twice")
        return members

    def model_post_init(self, _context: object) -> None:
        self._by_fingerprint = {member.fingerprint: member for member in self.members}

    _by_fingerprint: dict[str, Member] = {}

    def find(self, fingerprint: str) -> Member | None:
        """Return the member of this fingerprint; None where there is none."""
        return self._by_fingerprint.get(fingerprint)

    def refusal(self, shown: Certificate) -> str | None:
        """Return why the certificate ``shown`` may not call; None where it may."""
        member = self.find(shown.fingerprint)
        if member is None or member.name != shown.name:
            return "is not in the list of members"
        if member.revoked is not None:
            return f"was revoked on {member.revoked:%Y-%m-%d}"
        return None if member.is_allowed else f"has expired on {member.expires:%Y-%m-%d}"

    def named(self, who: str) -> list[Member]:
        """Return the members that ``who`` names: all of a common name, or those whose fingerprint begins with it."""
        digits = who.lower().replace(":", "")
        return [
            member
            for member in self.members
            if member.name == who or (len(digits) >= MIN_DIGITS and member.fingerprint.startswith(digits))
        ]


def read_membership(file: Path) -> Membership:
    """Read the list in ``file``.

    Raises:
        ConfigError: The file is missing, too long, or no such list.
    """
    try:
        content = read_regular(file, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); `fedml-dapper silos add {file} CERTIFICATE.pem` makes the list"
        ) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{file}: a list of members takes at most {MAX_BYTES >> 20} MiB")
    try:
        return Membership.model_validate_json(content)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in mistake["loc"])
        raise ConfigError(f"{file}: not a list of members: {place or 'the file'}: {mistake['msg']}") from error


class MembershipFile:
    """The list in ``file``, which is read again when the file has changed.

    Raises:
        ConfigError: The file is missing at the start, too long, or no such list.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp = stamp(file)
        self._last = read_membership(file)

    def read(self) -> Membership:
        """Return the list as it is on the disk; where that is no list, log it and return the one before."""
        if (found := stamp(self._file)) == self._stamp:
            return self._last
        self._stamp = found
        try:
            self._last = read_membership(self._file)
        except ConfigError as error:
            LOGGER.warning("the list of members is of no use, the one before still counts: %s", error)
        else:
            LOGGER.info("the list of members has been read again: %d certificates", len(self._last.members))
        return self._last


def add_members(file: Path, certificates: Sequence[Certificate]) -> list[Member]:
    """Add all of ``certificates``, or none of them, to the list in ``file``, which is made where there is none.

    Raises:
        ConfigError: A certificate is in the list already, was revoked, has expired, or is of neither a silo nor an edge
            nor an operator.
    """
    added = [_new_member(certificate) for certificate in certificates]

    def change(membership: Membership) -> Membership:
        for member in added:
            known = membership.find(member.fingerprint)
            if known is not None and known.revoked is not None:
                raise ConfigError(
                    f"{file}: this certificate of {known.name} was revoked on {known.revoked:%Y-%m-%d}, and stays so;"
                    " make a new one"
                )
            if known is not None:
                raise ConfigError(f"{file}: this certificate of {known.name} is there already")
            membership = Membership(members=(*membership.members, member))
        return membership

    _change(file, change)
    return added


def _new_member(certificate: Certificate) -> Member:
    if certificate.is_expired:
        raise ConfigError(f"the certificate of {certificate.name} has expired on {certificate.expires:%Y-%m-%d}")
    if not _NAME.fullmatch(certificate.name):
        raise ConfigError(
            f"a certificate with the common name {certificate.name!r} calls no server; expected silo-RANK, edge-RANK or"
            f" {ADMIN}"
        )
    return Member(fingerprint=certificate.fingerprint, name=certificate.name, expires=certificate.expires, added=_now())


def revoke_members(file: Path, who: str, reason: str = "") -> list[Member]:
    """Revoke the certificates that ``who`` names: all of a common name, or the one whose fingerprint begins with it.

    Raises:
        ConfigError: No certificate is left to be revoked, or several fingerprints begin so.
    """
    revoked: list[Member] = []

    def change(membership: Membership) -> Membership:
        found = [member for member in membership.named(who) if member.revoked is None]
        if not found:
            raise ConfigError(f"{file}: no certificate of {who!r} that is not revoked; `silos list` shows all")
        if len({member.name for member in found}) > 1:
            raise ConfigError(f"{file}: {who!r} begins several fingerprints; give more digits")
        update = {"revoked": _now(), "reason": reason}
        revoked[:] = [Member.model_validate(member.model_dump() | update) for member in found]
        by_fingerprint = {member.fingerprint: member for member in revoked}
        return Membership(members=tuple(by_fingerprint.get(one.fingerprint, one) for one in membership.members))

    _change(file, change)
    return revoked


def _change(file: Path, change: Callable[[Membership], Membership]) -> None:
    """Replace the list in ``file`` by what ``change`` makes of it, under the folder's lock."""
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: no folder {file.parent}")
    try:
        with locked(file.with_name(LOCK_NAME), _PATIENCE_SECONDS):
            changed = change(read_membership(file) if file.exists() else Membership())
            lines = ",\n  ".join(member.model_dump_json(exclude_defaults=True) for member in changed.members)
            with written_whole(file) as scratch:
                scratch.write_text(f'{{"members": [\n  {lines}\n]}}\n', encoding="utf-8")
    except DataError as error:
        raise ConfigError(f"{file}: not changed: {error}") from error


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
