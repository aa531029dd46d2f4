"""Options of an operator's commands: where the running server is, and who asks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.addresses import join_address
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.config.proxy_option import proxy_option
from fedml_dapper.config.section import check
from fedml_dapper.operations.credentials import read_admin_credentials
from fedml_dapper.operations.orders import Answer, Order, give_order

PORT = 8890


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add HOST, --certificates, --token-file and --http-proxy to a command."""
    for decorate in (
        proxy_option,
        click.option("--token-file", type=NamedPath(dir_okay=False), help="Where the federation has a token."),
        click.option(
            "--certificates",
            type=NamedPath(file_okay=False),
            default="certs",
            show_default=True,
            help="Folder with ca.pem, admin.pem and admin.key.",
        ),
        click.argument("host"),
    ):
        command = decorate(command)
    return command


def ask_server(host: str, certificates: Path, token_file: Path | None, http_proxy: str | None, order: Order) -> Answer:
    """Send ``order`` to the server at ``host``, HOST or HOST:PORT, and return its answer.

    Raises:
        DapperError: The server does not answer, or refuses.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported by our own one-line messages
    address = _with_port(host)
    values = {
        "server_address": address,
        "certificates": certificates,
        "token_file": token_file,
        "http_proxy": http_proxy,
    }
    config = check(SecureGrpcConfig, values, where=f"the server {host}")
    return give_order(address, read_admin_credentials(config), order, config.http_proxy)


def _with_port(host: str) -> str:
    """Return HOST:PORT of HOST or HOST:PORT; an IPv6 address without a port may stand without brackets."""
    if host.startswith("[") and host.endswith("]"):
        return f"{host}:{PORT}"
    is_bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    return join_address(host, PORT) if is_bare_ipv6 or ":" not in host else host
