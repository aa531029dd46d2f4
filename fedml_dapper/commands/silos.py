"""``fedml-dapper silos``: who may call a server, by a list of certificates, and who may join, by one-time codes."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedml_dapper.commands.options import json_option, log_format_option
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError, printable
from fedml_dapper.files.atomic import FOR_ITS_OWNER, written_whole
from fedml_dapper.operations import (
    AuditLog,
    Member,
    add_members,
    read_certificate,
    read_last_seen,
    read_membership,
    revoke_members,
)
from fedml_dapper.operations.join_code import MAX_RANK, JoinCode
from fedml_dapper.operations.membership import MAX_REASON
from fedml_dapper.process.interruption import take_time
from fedml_dapper.process.log import LogFormat, show_log

AUDIT_NAME = "joins.jsonl"
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_MOST = timedelta(days=90)

members_argument = click.argument("members", type=NamedPath(dir_okay=False))


@click.group()
def silos() -> None:
    """Say who may call a server, and hand out codes by which devices join.

    `add`, `revoke` and `list` are about the list of certificates that dapper_grpc.members_file names. A server reads it
    again while it runs: what is revoked is cut off within a second. `invite` and `enroll` are for devices that make
    their own keys, with `dapper-device join`.
    """


@silos.command()
@members_argument
@click.argument("certificates", type=NamedPath(), nargs=-1, required=True)
def add(members: Path, certificates: tuple[Path, ...]) -> None:
    """Let CERTIFICATES (PEM) call, of silos, edges or an admin. MEMBERS is made where it is missing."""
    for member in add_members(members, [read_certificate(file) for file in certificates]):
        click.echo(f"{member.name} may call with {member.fingerprint[:16]}, until {member.expires:%Y-%m-%d}")


@silos.command()
@members_argument
@click.argument("who")
@click.option("--reason", default="", help="Why, in a few words.")
def revoke(members: Path, who: str, reason: str) -> None:
    """Lock WHO out for good: a name, such as silo-3, or the first 8 or more digits of a fingerprint.

    The name may come back with another certificate, once that is added.
    """
    if len(reason) > MAX_REASON:
        raise click.UsageError(f"--reason takes up to {MAX_REASON} letters")
    for member in revoke_members(members, who, reason):
        click.echo(f"{member.name} may no longer call with {member.fingerprint[:16]}")


@silos.command("list")
@members_argument
@json_option
def list_members(members: Path, as_json: bool) -> None:
    """Show all certificates of MEMBERS, and when each was seen first and last."""
    listed = read_membership(members).members
    seen = read_last_seen(members)
    if as_json:
        rows = [
            member.model_dump(mode="json")
            | {"seen": sighting.model_dump(mode="json") if (sighting := seen.get(member.fingerprint)) else None}
            for member in listed
        ]
        click.echo(TypeAdapter(list[dict[str, object]]).dump_json(rows))
        return
    table = Table(title=Text(printable(str(members))))
    for column in ("name", "fingerprint", "state", "expires", "first seen", "last seen", "reason"):
        table.add_column(column, overflow="fold")
    for member in listed:
        sighting = seen.get(member.fingerprint)
        times = (None, None) if sighting is None else (sighting.first, sighting.last)
        cells = [member.name, member.fingerprint[:16], _state(member), f"{member.expires:%Y-%m-%d}"]
        table.add_row(*(Text(printable(cell)) for cell in (*cells, *map(_moment, times), member.reason)))
    Console().print(table)


def _lifetime(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    """Callback of an option for a time such as ``24h``."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    lifetime = None if found is None else int(found[1]) * _UNITS[found[2]]
    if lifetime is None or lifetime > _MOST:
        raise click.BadParameter(f"expected minutes, hours or days such as 30m, 24h or 7d, up to {_MOST.days}d")
    return lifetime


certificates_option = click.option(
    "--certificates",
    type=NamedPath(file_okay=False),
    default="certs",
    show_default=True,
    help="Folder that run/make_certs.sh made.",
)


@silos.command()
@certificates_option
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many silos are to join.")
@click.option(
    "--first-rank",
    type=click.IntRange(min=1, max=MAX_RANK),
    help="Rank of the first of them; codes of these silos that nobody has used end. By default the lowest free ones.",
)
@click.option(
    "--expires", callback=_lifetime, default="24h", show_default=True, help="How long the codes are good: 30m, 24h, 7d."
)
@click.option("-o", "--output", type=NamedPath(dir_okay=False), help="File for the codes, a line each; else stdout.")
def invite(certificates: Path, count: int, first_rank: int | None, expires: timedelta, output: Path | None) -> None:
    """Make one-time codes by which devices join, each as one silo.

    Give each device its code over a channel you trust: whoever uses it first is the silo. Only digests of the codes are
    kept.
    """
    from fedml_dapper.operations.invitations import invite as invite_silos

    if output is None:
        for code in invite_silos(certificates, count, expires, first_rank):
            click.echo(code)
        return
    if output.exists():
        raise ConfigError(f"{output}: is there already, perhaps with codes that nothing else has; name another file")
    with written_whole(output, FOR_ITS_OWNER) as scratch:
        codes = invite_silos(certificates, count, expires, first_rank)
        scratch.write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")
    click.echo(f"{output}: {_span(codes)}")


def _span(codes: list[JoinCode]) -> str:
    names = codes[0].name if len(codes) == 1 else f"{codes[0].name} .. {codes[-1].name}"
    return f"{len(codes)} codes, {names}"


@silos.command()
@certificates_option
@click.option("--listen", metavar="ADDRESS:PORT", required=True, help="Where to listen, such as 0.0.0.0:8891.")
@click.option("--members", type=NamedPath(dir_okay=False), help="List that new certificates are added to.")
@click.option(
    "--audit-file", type=NamedPath(dir_okay=False), help=f"Log of who joined; by default {AUDIT_NAME} in the folder."
)
@log_format_option
def enroll(
    certificates: Path, listen: str, members: Path | None, audit_file: Path | None, log_format: LogFormat
) -> None:
    """Answer devices that join by a code, until Ctrl-C.

    It needs ca.key, and server.pem with server.key, whose hosts devices dial. Run it as long as devices join, and not
    beside a server that runs for long.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported by our own one-line messages
    from fedml_dapper.operations.authority import Authority
    from fedml_dapper.operations.registrar import Registrar
    from fedml_dapper.secure_grpc.enrolment import EnrolmentService

    show_log("enrolment", log_format)
    authority = Authority(certificates)
    audit = AuditLog(audit_file or certificates / AUDIT_NAME)
    try:
        service = EnrolmentService(certificates, listen, Registrar(authority, members, audit))
        click.echo(f"Devices join by: dapper-device join {service.address} CODE. Ctrl-C ends this.")
        try:
            service.wait()
        except KeyboardInterrupt:
            take_time()
        finally:
            service.stop()
    finally:
        audit.close()


def _state(member: Member) -> str:
    if member.revoked is not None:
        return f"revoked {member.revoked:%Y-%m-%d}"
    return "may call" if member.is_allowed else "expired"


def _moment(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"
