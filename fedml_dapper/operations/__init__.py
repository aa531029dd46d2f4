"""Operation of a long-running federation: list of members, audit log, status, metrics and operators' orders."""

from fedml_dapper.operations.audit_log import AuditLog
from fedml_dapper.operations.certificate import Certificate, certificate_of, read_certificate
from fedml_dapper.operations.last_seen import LastSeen, read_last_seen
from fedml_dapper.operations.membership import (
    Member,
    Membership,
    MembershipFile,
    add_members,
    read_membership,
    revoke_members,
)
from fedml_dapper.operations.rate_limiter import RateLimiter

__all__ = [
    "AuditLog",
    "Certificate",
    "LastSeen",
    "Member",
    "Membership",
    "MembershipFile",
    "RateLimiter",
    "add_members",
    "certificate_of",
    "read_certificate",
    "read_last_seen",
    "read_membership",
    "revoke_members",
]
