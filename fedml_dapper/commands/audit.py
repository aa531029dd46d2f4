"""``fedml-dapper audit``: check and show an audit log."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedml_dapper.commands.options import json_option
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError, DataError, printable
from fedml_dapper.operations.audit_log import FIRST, Entry, entries_of


@click.command()
@click.argument("file", type=NamedPath(dir_okay=False))
@click.option("--holds", metavar="HEAD", help="A head that was noted earlier: fail unless it is the hash of a line.")
@click.option("--last", type=click.IntRange(min=0), default=0, help="Show so many of the last entries.")
@json_option
def audit(file: Path, holds: str | None, last: int, as_json: bool) -> None:
    """Check the chain of hashes in an audit log, and print its head; exit code 2 where a line does not fit.

    Lines that were cut off at the end leave a chain that is whole. Note the head elsewhere now and then, and give it
    with --holds later.
    """
    if holds is not None and not re.fullmatch(r"[0-9a-f]{64}", holds):
        raise ConfigError(f"--holds {holds}: expected a head, 64 hexadecimal digits")
    shown: deque[Entry] = deque(maxlen=max(1, last))
    is_held = holds is None
    for entry in entries_of(file):
        shown.append(entry)
        is_held = is_held or entry.hash == holds
    if not is_held:
        raise DataError(f"{file}: no line has the hash {holds}: lines are missing, or all were written anew")
    entries, head = (shown[-1].number, shown[-1].hash) if shown else (0, FIRST)
    if not last:
        shown.clear()
    if as_json:
        rows = [entry.model_dump(mode="json") for entry in shown]
        document = {"entries": entries, "head": head, "last": rows}
        click.echo(TypeAdapter(dict[str, object]).dump_json(document))
        return
    if shown:
        table = Table()
        for column in ("number", "at (UTC)", "event", "who", "detail"):
            table.add_column(column, overflow="fold")
        for entry in shown:
            detail = ", ".join(f"{key} {value}" for key, value in entry.detail.items())
            more = f" (and {entry.left_out} left out)" if entry.left_out else ""
            cells = (str(entry.number), f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.event, entry.who, detail + more)
            table.add_row(*(Text(printable(cell)) for cell in cells))
        Console().print(table)
    click.echo(f"{file}: {entries} entries, whole; head {head}")
