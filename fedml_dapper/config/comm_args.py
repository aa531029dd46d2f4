"""``comm_args``: how server and clients reach each other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fedml_dapper.config.section import Section


class MqttConfig(Section):
    """``comm_args.customized_training_mqtt_config``: your own broker, in FedML's words."""

    BROKER_HOST: str
    """Name or address."""
    BROKER_PORT: int = 1883
    """Where it listens."""
    MQTT_USER: str = ""
    """User name, if it asks for one."""
    MQTT_PWD: str = ""
    """The password that goes with it."""
    MQTT_KEEPALIVE: int = 60
    """Seconds."""


class S3Config(Section):
    """``comm_args.customized_training_s3_config``: your own object store, in FedML's words; the bucket must exist."""

    BUCKET_NAME: str
    """A bucket that is there."""
    CN_S3_AKI: str
    """Access key id."""
    CN_S3_SAK: str
    """Secret access key."""
    CN_REGION_NAME: str = "us-east-1"
    """Region."""
    CN_S3_ENDPOINT: str
    """URL."""


class SecureGrpcConfig(Section):
    """``comm_args.dapper_grpc``: our own gRPC between a server and silos that prove who they are (docs/security.md)."""

    server_address: str
    """HOST:PORT that silos dial; the server's certificate must name HOST."""
    listen_address: str | None = None
    """ADDRESS:PORT the server listens on, ``server_address`` when absent; 0.0.0.0:PORT behind a forwarded port."""
    certificates: Path
    """Folder with ``ca.pem`` and this process's ``NAME.pem`` and ``NAME.key``; NAME is ``server`` or ``silo-RANK``."""
    token_file: Path | None = None
    """File that holds a secret shared by all, asked for besides the certificate; its end of line does not count."""
    token_variable: str | None = None
    """The same from this environment variable."""
    max_message_mb: int = Field(default=2048, ge=1)
    """MiB; a larger message is refused before anything of it is kept. A few times the model's size is enough."""

    @field_validator("server_address", "listen_address")
    @classmethod
    def _host_and_port(cls, address: str | None) -> str | None:
        if address is not None:
            host, _, port = address.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
                raise ValueError(f"expected HOST:PORT, e.g. server.example.org:8890, found {address}")
        return address

    @model_validator(mode="after")
    def _one_token(self) -> SecureGrpcConfig:
        if self.token_file is not None and self.token_variable is not None:
            raise ValueError("token_file and token_variable are two places for one token; leave one out")
        return self

    @property
    def server_host(self) -> str:
        """HOST of ``server_address``."""
        return self.server_address.rpartition(":")[0].strip("[]")


class CommArgs(Section):
    """``comm_args``: FedML's communication backend. ``sp`` is the single process, ``MPI`` the simulation on several;
    ``DAPPER_GRPC``, ``GRPC`` and ``MQTT_S3`` connect silos, the first also across networks that are not trusted."""

    backend: Literal["sp", "MPI", "DAPPER_GRPC", "GRPC", "MQTT_S3"] = "sp"
    """What carries messages (docs/runners.md says which is for what)."""
    dapper_grpc: SecureGrpcConfig | None = None
    """For DAPPER_GRPC: the server's address, and who is who."""
    grpc_ipconfig_path: Path | None = None
    """For GRPC: a CSV table of FedML's columns eid,rank,grpc_server_ip,grpc_server_port; rank 0 is the server."""
    customized_training_mqtt_config: MqttConfig | None = None
    """For MQTT_S3: your own broker."""
    customized_training_s3_config: S3Config | None = None
    """For MQTT_S3: your own object store."""

    @model_validator(mode="after")
    def _addresses(self) -> CommArgs:
        if self.backend == "DAPPER_GRPC" and self.dapper_grpc is None:
            raise ValueError(
                "backend DAPPER_GRPC needs dapper_grpc: the server's address and the folder of certificates, as in"
                " config/secure_grpc.yaml"
            )
        if self.backend == "GRPC" and self.grpc_ipconfig_path is None:
            raise ValueError("backend GRPC needs grpc_ipconfig_path, a table of everyone's address")
        if self.backend == "MQTT_S3" and None in (
            self.customized_training_mqtt_config,
            self.customized_training_s3_config,
        ):
            raise ValueError(
                "backend MQTT_S3 needs customized_training_mqtt_config and customized_training_s3_config: the addresses"
                " of your own broker and object store"
            )
        return self
