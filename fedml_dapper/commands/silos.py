"""``fedml-dapper silos``: manage the list of certificates that may call a server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedml_dapper.commands.options import json_option
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import printable
from fedml_dapper.operations import (
    Member,
    add_members,
    read_certificate,
    read_last_seen,
    read_membership,
    revoke_members,
)
from fedml_dapper.operations.membership import MAX_REASON

members_argument = click.argument("members", type=NamedPath(dir_okay=False))


@click.group()
def silos() -> None:
    """Say which certificates may call a server, in the file that dapper_grpc.members_file names.

    A server reads the file again while it runs: what is revoked is cut off within a second.
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


def _state(member: Member) -> str:
    if member.revoked is not None:
        return f"revoked {member.revoked:%Y-%m-%d}"
    return "may call" if member.is_allowed else "expired"


def _moment(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"
