"""Options by which an operator's commands find a running server, and show who asks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedml_dapper.commands.options import NamedPath
from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.section import check
from fedml_dapper.credentials import read_admin_credentials
from fedml_dapper.operations.orders import Answer, Order, give_order

PORT = 8890


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """HOST, --certificates, --token-file."""
    for decorate in (
        click.option(
            "--token-file", type=NamedPath(dir_okay=False), help="Where the federation has a token."
        ),
        click.option(
            "--certificates", type=NamedPath(file_okay=False), default="certs", show_default=True,
            help="Folder with ca.pem, admin.pem and admin.key.",
        ),
        click.argument("host"),
    ):  # fmt: skip
        command = decorate(command)
    return command


def ask_server(host: str, certificates: Path, token_file: Path | None, order: Order) -> Answer:
    """Give ``order`` to the server at ``host``, HOST or HOST:PORT. Raises :class:`DapperError`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what is wrong is said in one line, our own
    address = host if ":" in host else f"{host}:{PORT}"
    values = {"server_address": address, "certificates": certificates, "token_file": token_file}
    config = check(SecureGrpcConfig, values, where=f"the server {host}")
    return give_order(address, read_admin_credentials(config), order)
