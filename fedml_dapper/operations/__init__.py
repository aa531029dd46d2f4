"""Operation of a long-running federation: list of members, audit log, status, metrics and operators' orders."""

from fedml_dapper.operations.allowance import Allowance
from fedml_dapper.operations.audit_log import AuditLog
from fedml_dapper.operations.certificate import Certificate, certificate_of, read_certificate
from fedml_dapper.operations.membership import (
    Member,
    Membership,
    MembershipFile,
    add_members,
    read_membership,
    revoke_members,
)
from fedml_dapper.operations.sightings import Sightings, read_sightings
from fedml_dapper.operations.words import printable

__all__ = [
    "Allowance",
    "AuditLog",
    "Certificate",
    "Member",
    "Membership",
    "MembershipFile",
    "Sightings",
    "add_members",
    "certificate_of",
    "printable",
    "read_certificate",
    "read_membership",
    "read_sightings",
    "revoke_members",
]
