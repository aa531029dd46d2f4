"""Running a federation day and night: who may take part, what happened, how it goes, and what an operator may do."""

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
from fedml_dapper.operations.sightings import Sighting, Sightings, read_sightings

__all__ = [
    "Allowance",
    "AuditLog",
    "Certificate",
    "Member",
    "Membership",
    "MembershipFile",
    "Sighting",
    "Sightings",
    "add_members",
    "certificate_of",
    "read_certificate",
    "read_membership",
    "read_sightings",
    "revoke_members",
]
