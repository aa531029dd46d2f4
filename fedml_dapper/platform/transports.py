"""The message transports: our own, and FedML's without what keeps them from being used as they are.

Of FedML's, gRPC: the receive loop spins a core while it waits, sending to a peer that is not there raises, and stopping
cuts off the call that is being answered, so that its sender takes a peer that has heard it for lost. MPI: stopping
fails when a message is still queued. MQTT_S3: objects are never deleted. Their messages are FedML's own pickled
``Message`` objects whose payload is our bytes; use them on trusted networks only.
"""

from __future__ import annotations

import logging
import pickle
import queue
from collections.abc import Collection
from typing import Any

import grpc
from fedml.arguments import Arguments
from fedml.core.distributed.communication.base_com_manager import BaseCommunicationManager
from fedml.core.distributed.communication.grpc.grpc_comm_manager import GRPCCommManager
from fedml.core.distributed.communication.mpi.com_manager import MpiCommunicationManager
from fedml.core.distributed.communication.mqtt_s3.mqtt_s3_multi_clients_comm_manager import (
    MqttS3MultiClientsCommManager,
)

from fedml_dapper.config import FEDML_GRPC_HOLE, SecureGrpcConfig, check
from fedml_dapper.credentials import CredentialFiles
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.monitor import Monitor
from fedml_dapper.operations.orders import Desk
from fedml_dapper.operations.status import StatusBoard
from fedml_dapper.platform.secure_grpc import SecureServer, SecureSilo

LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 1.0
"""What a call that is being answered may take when everything ends; it takes as good as none."""


class GrpcTransport(GRPCCommManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's gRPC, waiting for messages instead of spinning, and answering what it has heard before it stops."""

    def message_handling_subroutine(self) -> None:
        while self.is_running:
            try:
                data = self.grpc_servicer.message_q.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            self.notify(pickle.loads(data))  # noqa: S301  # FedML's wire format; see the module's first lines

    def stop_receive_message(self) -> None:
        self.grpc_server.stop(_ANSWER_SECONDS).wait()
        self.is_running = False

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Nothing is stored."""


class MpiTransport(MpiCommunicationManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's MPI, waiting for messages instead of polling, and stopping with messages still queued."""

    def handle_receive_message(self) -> None:
        self._notify_connection_ready()
        while not self._stop_running:
            try:
                message = self.q_receiver.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            self.notify(message)

    def stop_receive_message(self) -> None:
        self._stop_running = True
        for thread in (self._server_receive_thread, self._client_receive_thread):
            self._stop_thread(thread)

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Nothing is stored."""


class MqttS3Transport(MqttS3MultiClientsCommManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's MQTT with payloads in S3, deleting objects once their round is over."""

    def _on_message(self, msg: Any) -> None:
        storage = self.s3_storage.aws_s3_client
        try:
            self._on_message_impl(msg)
        except storage.exceptions.NoSuchKey:
            LOGGER.warning("a message's object is gone: the round it belonged to is over")

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Delete every object of this run, but for those from and to ``busy`` ranks; call between rounds, when all
        others belong to finished ones."""
        storage = self.s3_storage.aws_s3_client
        bucket = self.s3_storage.bucket_name
        kept = tuple(f"{self._topic}{sides}_" for rank in busy for sides in (rank, f"{self.server_id}_{rank}"))
        for page in storage.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=self._topic):
            keys = [{"Key": item["Key"]} for item in page.get("Contents", []) if not item["Key"].startswith(kept)]
            if keys:
                storage.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})


def reason_of(error: Exception) -> str:
    """A transport's error in a few words."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def open_transport(args: Arguments, comm: Any, rank: int, num_clients: int) -> BaseCommunicationManager:
    """The transport that ``args.backend`` names, connected; over DAPPER_GRPC a silo's (see :func:`open_downwards`)."""
    if args.backend == "DAPPER_GRPC":
        return open_upwards(args, rank)
    if args.backend in ("GRPC", "MQTT_S3"):
        known = f" ({FEDML_GRPC_HOLE})" if args.backend == "GRPC" else ""
        LOGGER.critical(
            "%s is FedML's: what it receives is unpickled, so whoever can reach it, or the broker, can run code here%s;"
            " and silos are not told apart. For trusted networks only; elsewhere use DAPPER_GRPC (docs/security.md)",
            args.backend,
            known,
        )
    if args.backend == "GRPC":
        return GrpcTransport(args.grpc_ipconfig_path, client_rank=rank, client_num=num_clients, args=args)
    if args.backend == "MPI":
        return MpiTransport(comm, rank, num_clients + 1)
    if args.backend == "MQTT_S3":
        mqtt = args.customized_training_mqtt_config
        s3 = args.customized_training_s3_config
        try:
            return MqttS3Transport(
                mqtt, s3, topic=str(args.run_id), client_rank=rank, client_num=num_clients, args=args
            )
        except OSError as error:
            place = f"{mqtt['BROKER_HOST']}:{mqtt['BROKER_PORT']}"
            raise ConfigError(f"no MQTT broker at {place} ({error}); start it, or mend comm_args") from error
    raise ConfigError(f"comm_args.backend: {args.backend} has no transport")


def open_upwards(args: Arguments, rank: int) -> SecureSilo:
    """What the silo or edge of ``rank`` dials its server with, over DAPPER_GRPC."""
    config = _secure_grpc(args)
    return SecureSilo(config.dialled_by(rank), CredentialFiles(config, rank), rank, patience_s=args.round_timeout_s)


def open_audit_log(args: Arguments) -> AuditLog:
    """What a server or an edge writes down of who called; nothing over other transports than DAPPER_GRPC."""
    return AuditLog(_secure_grpc(args).audit_file if args.backend == "DAPPER_GRPC" else None)


def open_monitor(args: Arguments, rank: int, board: StatusBoard, patience_s: float) -> Monitor | None:
    """Health and metrics of the server, or of the edge of ``rank``, where the settings ask for them."""
    config = _secure_grpc(args).served_by(rank) if args.backend == "DAPPER_GRPC" else None
    if config is None or config.monitor_port is None:
        return None
    return Monitor(config.monitor_host, config.monitor_port, board.read, patience_s)


def open_downwards(args: Arguments, rank: int, callers: Collection[int], audit: AuditLog, desk: Desk) -> SecureServer:
    """What the ranks ``callers`` dial over DAPPER_GRPC: the server, or the edge of ``rank``."""
    config = _secure_grpc(args)
    names = {caller: config.name_of(caller) for caller in callers}
    return SecureServer(config.served_by(rank), CredentialFiles(config, rank), names, audit, desk)


def _secure_grpc(args: Arguments) -> SecureGrpcConfig:
    return check(SecureGrpcConfig, args.dapper_grpc, where="comm_args.dapper_grpc")
