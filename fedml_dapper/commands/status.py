"""``fedml-dapper status``: show the state of a running server."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedml_dapper.commands.options import json_option
from fedml_dapper.commands.server_options import ask_server, server_options
from fedml_dapper.errors import printable
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import ServerStatus


@click.command()
@server_options
@json_option
def status(host: str, certificates: Path, token_file: Path | None, http_proxy: str | None, as_json: bool) -> None:
    """Show how the server at HOST[:PORT] is, and each of its callers. Asks for the certificate of an admin."""
    answer = ask_server(host, certificates, token_file, http_proxy, Order(act="status"))
    if as_json:
        click.echo(answer.status.model_dump_json())
    else:
        show(answer.status)


def show(status: ServerStatus) -> None:
    """Print the status as a table and lines on the terminal."""
    console = Console()
    table = Table(title=f"round {status.round} of {status.rounds}: {status.state} for {_span(status.seconds)}")
    for column in ("caller", "connected", "heard", "at", "MB from it", "MB to it", "refused calls"):
        table.add_column(column, overflow="fold")
    for one in status.callers:
        heard = "never" if one.heard_s is None else f"{_span(one.heard_s)} ago"
        sizes = [f"{size / 1e6:.1f}" for size in (one.bytes_in, one.bytes_out)]
        cells = [one.name, "yes" if one.connected else "no", heard, one.standing, *sizes, str(one.refused_calls)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
    lines = [f"memory {status.memory_bytes / 1e6:.0f} MB, up {_span(status.up_s)}"]
    if status.there is not None:
        lines.append(f"{status.there} devices have called lately")
    if status.lacks:
        lines.append(f"no round opens: {status.lacks}")
    if status.loop_s > 5:
        lines.append(f"busy for {_span(status.loop_s)}: it hears orders when it is done")
    if status.refused_uploads or status.refused_strangers:
        lines.append(f"refused: {status.refused_uploads} uploads, {status.refused_strangers} calls of strangers")
    if status.absent:
        lines.append(f"absent from the last round: {', '.join(status.absent)}")
    if status.out:
        lines.append(f"left out: {', '.join(f'{name} ({until})' for name, until in status.out.items())}")
    for line in lines:
        console.print(printable(line), soft_wrap=True, markup=False)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
