"""The images' health check: exit code 0 where the server, or this silo, is in order; else a line says why it is not.

    python health.py server EXPERIMENT CERTIFICATES   it answers TLS, with a certificate that silos accept
    python health.py silo EXPERIMENT CERTIFICATES     it is connected to the server, or to an edge

Nothing is sent. The server sees a handshake that ends there; what a silo has open is asked of the kernel.
"""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path

import psutil

from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.errors import ConfigError

PATIENCE_S = 5
ONE_OF_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and one to call."""


def check_server(config: SecureGrpcConfig) -> None:
    """Raises ``OSError``, of which TLS errors are some, where no silo could connect."""
    address, _, port = (config.listen_address or config.server_address).rpartition(":")
    address = address.strip("[]")
    tls = ssl.create_default_context(cafile=config.certificates / "ca.pem")
    with (
        socket.create_connection((ONE_OF_ALL.get(address, address), int(port)), timeout=PATIENCE_S) as line,
        tls.wrap_socket(line, server_hostname=config.server_host),
    ):
        pass


def check_silo(config: SecureGrpcConfig) -> None:
    """Raises ``OSError`` where nobody on this network, which a container has for itself, is connected to a server."""
    addresses = [config.server_address, *(edge.server_address for edge in config.edges)]
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    connected = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    if not any(one.raddr.port in ports for one in connected):
        raise ConnectionError(f"not connected to {' or '.join(addresses)}")


def main(role: str, experiment: str, certificates: str) -> None:
    place = {"comm_args.dapper_grpc.certificates": certificates}
    config = load_settings(Path(experiment), place).comm_args.dapper_grpc
    if config is None:
        raise ConfigError(f"{experiment}: no comm_args.dapper_grpc, so there is nothing to ask")
    (check_server if role == "server" else check_silo)(config)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ConfigError) as error:
        sys.exit(f"health: {error}")
