"""``fedml-dapper steer``: give an operator's orders to a running server."""

from __future__ import annotations

import re
from pathlib import Path

import click

from fedml_dapper.commands.server_options import ask_server, server_options
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.orders import ACTS, ON_A_SILO, Act, Order


@click.command()
@server_options
@click.argument("act", type=click.Choice([act for act in ACTS if act != "status"]))
@click.argument("silo", required=False)
def steer(
    host: str, certificates: Path, token_file: Path | None, http_proxy: str | None, act: Act, silo: str | None
) -> None:
    """Ask the server at HOST[:PORT] to do ACT. Asks for the certificate of an admin.

    \b
    pause          open no round any more; the open one ends as usual
    resume         go on
    end            end the run after the open round, or at once between two
    evict silo-3   go on without this silo, also where it comes back
    lift silo-3    let a silo in again that was evicted, or is in quarantine
    """
    if (silo is None) == (act in ON_A_SILO):
        raise ConfigError(f"{act} goes {'with a silo, such as silo-3' if act in ON_A_SILO else 'without a silo'}")
    if silo is not None and not re.fullmatch(r"silo-[1-9][0-9]{0,6}", silo):
        raise ConfigError(f"{silo!r} is no silo; expected a name such as silo-3")
    rank = None if silo is None else int(silo.partition("-")[2])
    click.echo(ask_server(host, certificates, token_file, http_proxy, Order(act=act, silo=rank)).said)
