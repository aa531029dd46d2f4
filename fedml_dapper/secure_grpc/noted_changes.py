"""Notes of a server, in its log and audit log, about changes of who may call and what they ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fedml_dapper.operations import AuditLog, Membership

LOGGER = logging.getLogger(__name__)
MAX_NOTED = 100
"""How many calls and members of one change get an entry of their own in log and audit log; the rest is counted."""


def note_changes(audit: AuditLog, before: Membership | None, now: Membership | None) -> None:
    """Record in the audit log which certificates may call from now on, and which no longer."""
    allowed = [
        {one.fingerprint for one in found.members if one.revoked is None} if found is not None else set()
        for found in (before, now)
    ]
    changed = sorted(allowed[0] ^ allowed[1])
    for fingerprint in changed[:MAX_NOTED]:
        one = next(found.find(fingerprint) for found in (now, before) if found and found.find(fingerprint))
        assert one is not None
        event = "member_added" if fingerprint in allowed[1] else "member_revoked"
        audit.record(event, name=one.name, fingerprint=fingerprint, reason=one.reason)
    if len(changed) > MAX_NOTED:
        audit.record("more_members_changed", number=len(changed) - MAX_NOTED)


def note_ended(audit: AuditLog, ended: Sequence[tuple[str, str]], cut_off: Sequence[str]) -> None:
    """Record calls that were ``ended``, each by name and reason, and the names that may no longer call at all."""
    for name, reason in ended[:MAX_NOTED]:
        LOGGER.warning("a call of %s is cut off: %s", name, reason)
        audit.record("call_ended", name=name, reason=reason)
    if len(ended) > MAX_NOTED:
        audit.record("more_calls_ended", number=len(ended) - MAX_NOTED)
    for name in cut_off:
        LOGGER.warning("%s is cut off: no certificate of it may call any longer", name)
        audit.record("cut_off", name=name)
