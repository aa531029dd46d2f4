"""``comm_args``: how server and clients reach each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedml_dapper.config.addresses import Address, split_address
from fedml_dapper.config.limits import MAX_MESSAGE_MB
from fedml_dapper.config.secrets import Secret
from fedml_dapper.config.section import Section


class MqttConfig(Section):
    """``comm_args.customized_training_mqtt_config``: your own broker, in FedML's words."""

    BROKER_HOST: str
    """Name or address of the broker."""
    BROKER_PORT: int = 1883
    """Port that it listens on."""
    MQTT_USER: str = ""
    """User name, if it asks for one."""
    MQTT_PWD: Secret = ""
    """Password of that user; null in the files of a run."""
    MQTT_KEEPALIVE: int = 60
    """Seconds between two signs of life."""


class S3Config(Section):
    """``comm_args.customized_training_s3_config``: your own object store, in FedML's words; the bucket must exist."""

    BUCKET_NAME: str
    """Name of the bucket."""
    CN_S3_AKI: str
    """Access key id."""
    CN_S3_SAK: Secret
    """Secret access key; null in the files of a run."""
    CN_REGION_NAME: str = "us-east-1"
    """Region of the bucket."""
    CN_S3_ENDPOINT: str
    """URL of the store."""


ENVIRONMENT = "environment"


def _proxy(text: str) -> str:
    if text == ENVIRONMENT:
        return text
    scheme, slashes, address = text.rstrip("/").partition("://")
    if scheme != "http" or not slashes:
        raise ValueError(f"expected `{ENVIRONMENT}`, or http://HOST:PORT of a proxy, found {text}")
    if "@" in address:
        raise ValueError(f"a proxy's password belongs in the environment variable http_proxy; choose `{ENVIRONMENT}`")
    split_address(address)
    return f"http://{address}"


FEDML_GRPC_HOLE = "CVE-2026-5536, GHSA-2fpx-xrc2-7qf3"
"""Public reports that FedML's gRPC unpickles messages."""


class EdgeArgs(Section):
    """One of ``comm_args.dapper_grpc.edges``: a server near some of the silos, which sums up their uploads."""

    rank: int = Field(ge=2)
    """Rank of its process, above those of all silos; its certificate is ``edge-RANK``."""
    silos: tuple[int, ...] = Field(min_length=1)
    """Ranks of the silos that dial it in place of the server."""
    server_address: Address
    """HOST:PORT that they dial; the edge's certificate must name HOST."""
    listen_address: Address | None = None
    """ADDRESS:PORT the edge listens on, ``server_address`` when absent."""
    monitor_port: int | None = Field(default=None, ge=1, lt=2**16)
    """Port of /health and /metrics of this edge, as the server's; ``monitor_host`` is the same for all."""


class SecureGrpcConfig(Section):
    """``comm_args.dapper_grpc``: our own gRPC between a server and silos that prove who they are (docs/security.md)."""

    server_address: Address
    """HOST:PORT that silos dial, an IPv6 address in brackets; the server's certificate must name HOST."""
    listen_address: Address | None = None
    """ADDRESS:PORT the server listens on, ``server_address`` when absent; 0.0.0.0:PORT behind a forwarded port, and
    [::]:PORT for IPv6 as well."""
    certificates: Path
    """Folder with ``ca.pem`` and this process's ``NAME.pem`` and ``NAME.key``; NAME is ``server``, ``silo-RANK`` or
    ``edge-RANK``."""
    token_file: Path | None = None
    """File that holds a secret shared by all, asked for besides the certificate; its end of line does not count. A
    server takes each of several lines, a silo shows the first."""
    token_variable: str | None = None
    """Environment variable that holds the secret instead."""
    members_file: Path | None = None
    """For servers and edges: list of the certificates that may call, which ``fedml-dapper silos`` writes; without it
    each that ca.pem vouches for may."""
    audit_file: Path | None = None
    """For servers and edges: file that connections, refusals and acts are written into, chained by hashes
    (docs/operations.md); none when absent."""
    monitor_port: int | None = Field(default=None, ge=1, lt=2**16)
    """For the server: port of /health and /metrics (docs/operations.md), over plain HTTP; none when absent."""
    monitor_host: str = Field(default="127.0.0.1", max_length=255)
    """Address that it listens on; this machine alone by default."""
    max_message_mb: int = Field(default=2048, ge=1, le=MAX_MESSAGE_MB)
    """Largest message in MiB; a larger one is refused before anything of it is kept. A few times the model's size is
    enough."""
    http_proxy: Annotated[str, AfterValidator(_proxy)] | None = None
    """For silos and devices: HTTP proxy through which they reach the server, http://HOST:PORT, or ``environment`` for
    the variables https_proxy, http_proxy and no_proxy; none when absent, and never to this machine itself. ``join`` and
    operators' commands have ``--http-proxy``."""
    max_kib_per_s: float | None = Field(default=None, ge=8, allow_inf_nan=False)
    """For silos and devices: most KiB a second that their messages take of the line, up, and as many down; no limit
    when absent. A server cuts off devices that bring fewer than 4."""
    max_parts_mb: int = Field(default=4096, ge=0, le=MAX_MESSAGE_MB)
    """For servers and edges: most MiB of the round's large uploads that lie on the disk, so that one goes on where a
    line broke. 0 keeps none, and each begins anew (docs/weak_devices.md)."""
    edges: tuple[EdgeArgs, ...] = ()
    """Servers between this one and some of the silos (docs/runners.md); everybody else dials ``server_address``."""

    @property
    def server_host(self) -> str:
        """HOST of ``server_address``."""
        return split_address(self.server_address)[0]

    def name_of(self, rank: int) -> str:
        """Return the common name (CN) in the certificate of the process of this rank."""
        kind = "silo" if self.edge(rank) is None else "edge"
        return "server" if rank == 0 else f"{kind}-{rank}"

    def edge(self, rank: int) -> EdgeArgs | None:
        """Return the edge of this rank; None where the process is none."""
        return next((edge for edge in self.edges if edge.rank == rank), None)

    def config_for_silo(self, silo: int) -> SecureGrpcConfig:
        """Return the configuration of the silo of this rank, with its edge in the server's place if it has one."""
        return next((self.around(edge) for edge in self.edges if silo in edge.silos), self)

    def around(self, edge: EdgeArgs) -> SecureGrpcConfig:
        """Return the configuration with ``edge`` in the server's place."""
        place = {"server_address": edge.server_address, "listen_address": edge.listen_address}
        return self.model_copy(update={**place, "monitor_port": edge.monitor_port})

    def served_by(self, rank: int) -> SecureGrpcConfig:
        """Return the configuration of the server, or of the edge of this rank, with itself in the server's place."""
        edge = self.edge(rank)
        return self if edge is None else self.around(edge)


class CommArgs(Section):
    """``comm_args``: FedML's communication backend.

    ``sp`` is the single process, ``MPI`` the simulation on several; ``DAPPER_GRPC``, ``GRPC`` and ``MQTT_S3`` connect
    silos, the first also across networks that are not trusted.
    """

    backend: Literal["sp", "MPI", "DAPPER_GRPC", "GRPC", "MQTT_S3"] = "sp"
    """Transport of messages (docs/runners.md says which is for what)."""
    dapper_grpc: SecureGrpcConfig | None = None
    """For DAPPER_GRPC: the server's address, and who is who."""
    allow_pickle: bool = False
    """For GRPC: accept that whoever reaches a process's port may run code there."""
    grpc_ipconfig_path: Path | None = None
    """For GRPC: a CSV table of FedML's columns eid,rank,grpc_server_ip,grpc_server_port; rank 0 is the server."""
    customized_training_mqtt_config: MqttConfig | None = None
    """For MQTT_S3: your own broker."""
    customized_training_s3_config: S3Config | None = None
    """For MQTT_S3: your own object store."""

    @property
    def edges(self) -> tuple[EdgeArgs, ...]:
        """Servers between the server and some of the silos."""
        return self.dapper_grpc.edges if self.backend == "DAPPER_GRPC" and self.dapper_grpc is not None else ()

    def callers_of_server(self, num_processes: int) -> tuple[int, ...]:
        """Return the ranks of the processes that call the server itself: edges, and silos without one."""
        served = {silo for edge in self.edges for silo in edge.silos}
        own = [rank for rank in range(1, num_processes + 1) if rank not in served]
        return (*own, *(edge.rank for edge in self.edges))

    def edge(self, rank: int) -> EdgeArgs | None:
        """Return the edge of this rank; None where the process is none."""
        return next((edge for edge in self.edges if edge.rank == rank), None)
