"""Message transports by name: FedML's, with their faults mended, and our own of :mod:`.secure_grpc`.

FedML's faults are these:

* gRPC: the receive loop keeps a core busy while it waits. Sending to a peer that is not there raises. Stopping cuts off
  the call that is being answered, so that its sender takes the message for lost.
* MPI: stopping fails when a message is still queued.
* MQTT_S3: see :mod:`.mqtt_s3`.

The messages of these three are FedML's own pickled ``Message`` objects, with our bytes as payload; use them on trusted
networks only.
"""

from __future__ import annotations

import logging
import pickle
import queue
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.grpc.grpc_comm_manager import GRPCCommManager
from fedml.core.distributed.communication.mpi.com_manager import MpiCommunicationManager

from fedml_dapper.config import FEDML_GRPC_HOLE, SecureGrpcConfig, check
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.monitor import Monitor
from fedml_dapper.operations.orders import Desk
from fedml_dapper.operations.status import StatusBoard
from fedml_dapper.platform.address_table import check_address_table
from fedml_dapper.platform.mqtt_s3 import MqttS3Transport
from fedml_dapper.secure_grpc import SecureServer, SecureSilo, Transport

LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 1.0
"""How long a call that is being answered may take when the transport stops; it takes next to none."""


class GrpcTransport(GRPCCommManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's gRPC, which waits for messages instead of spinning, and answers open calls before it stops."""

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
        """Do nothing: this transport stores no messages."""

    def delivered(self) -> int:
        """Return 0: a message arrives whole or not at all."""
        return 0


class MpiTransport(MpiCommunicationManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's MPI, which waits for messages instead of polling, and can stop with messages still queued."""

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
        """Do nothing: this transport stores no messages."""

    def delivered(self) -> int:
        """Return 0: a message arrives whole or not at all."""
        return 0


def open_transport(args: Arguments, comm: Any, rank: int, num_clients: int, folder: Path | None = None) -> Transport:
    """Connect the transport that ``args.backend`` names; for DAPPER_GRPC a silo's (see :func:`open_downwards`).

    A silo keeps parts of a large message in ``folder``; in memory if it is None.

    Raises:
        ConfigError: The backend has no transport, the MQTT broker cannot be reached, or its or the store's secret is
            missing.
    """
    if args.backend == "DAPPER_GRPC":
        return open_upwards(args, rank, folder)
    if args.backend in ("GRPC", "MQTT_S3"):
        known = f" ({FEDML_GRPC_HOLE})" if args.backend == "GRPC" else ""
        LOGGER.critical(
            "%s is FedML's: what it receives is unpickled, so whoever can reach it, or the broker, can run code here%s;"
            " and silos are not told apart. For trusted networks only; elsewhere use DAPPER_GRPC (docs/security.md)",
            args.backend,
            known,
        )
    if args.backend == "GRPC":
        check_address_table(Path(args.grpc_ipconfig_path), range(1, num_clients + 1) if rank == 0 else (0,))
        try:
            return GrpcTransport(args.grpc_ipconfig_path, client_rank=rank, client_num=num_clients, args=args)
        except RuntimeError as error:  # gRPC's, where the port is taken or the address is another machine's
            raise ConfigError(
                f"comm_args.grpc_ipconfig_path: rank {rank} cannot listen at its address ({error}); end what listens"
                " there, or mend its line"
            ) from error
    if args.backend == "MPI":
        return MpiTransport(comm, rank, num_clients + 1)
    if args.backend == "MQTT_S3":
        mqtt = args.customized_training_mqtt_config
        s3 = args.customized_training_s3_config
        _check_secrets(mqtt, s3)
        try:
            return MqttS3Transport(args, rank, num_clients)
        except OSError as error:
            place = f"{mqtt['BROKER_HOST']}:{mqtt['BROKER_PORT']}"
            raise ConfigError(f"no MQTT broker at {place} ({error}); start it, or mend comm_args") from error
    raise ConfigError(f"comm_args.backend: {args.backend} has no transport")


def _check_secrets(mqtt: Mapping[str, Any], s3: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for settings of a run's folder, without the secrets that it was given."""
    secrets = {
        "customized_training_mqtt_config.MQTT_PWD": mqtt["MQTT_PWD"],
        "customized_training_s3_config.CN_S3_SAK": s3["CN_S3_SAK"],
    }
    missing = [key for key, secret in secrets.items() if secret is None]
    if missing:
        raise ConfigError(
            f"comm_args: {' and '.join(missing)}: missing, as files of a run leave secrets out; lay a file that has"
            " them over the settings"
        )


def open_upwards(args: Arguments, rank: int, folder: Path | None = None) -> SecureSilo:
    """Open the transport of the silo or edge of ``rank`` to its server, over DAPPER_GRPC.

    Parts of a large message are kept in ``folder``, also for the next process; in memory if it is None.
    """
    config = _secure_grpc(args)
    credentials = CredentialFiles(config, rank)
    return SecureSilo(config.config_for_silo(rank), credentials, rank, args.round_timeout_s, folder=folder)


def open_audit_log(args: Arguments) -> AuditLog:
    """Open the audit log of a server or an edge; without DAPPER_GRPC nothing is written."""
    return AuditLog(_secure_grpc(args).audit_file if args.backend == "DAPPER_GRPC" else None)


def open_monitor(args: Arguments, rank: int, board: StatusBoard, stalled_after_s: float) -> Monitor | None:
    """Open the endpoint for health and metrics of the server or edge of ``rank``; None where settings ask for none."""
    config = _secure_grpc(args).served_by(rank) if args.backend == "DAPPER_GRPC" else None
    if config is None or config.monitor_port is None:
        return None
    return Monitor(config.monitor_host, config.monitor_port, board.read, stalled_after_s)


def open_downwards(
    args: Arguments, rank: int, callers: Collection[int], audit: AuditLog, desk: Desk, folder: Path | None = None
) -> SecureServer:
    """Open the transport of the server, or of the edge of ``rank``, that ``callers`` call over DAPPER_GRPC.

    Large messages are kept in ``folder`` until their round is over; they travel whole if it is None.
    """
    config = _secure_grpc(args)
    names = {caller: config.name_of(caller) for caller in callers}
    credentials = CredentialFiles(config, rank)
    return SecureServer(config.served_by(rank), credentials, names, audit, desk, folder=folder)


def _secure_grpc(args: Arguments) -> SecureGrpcConfig:
    return check(SecureGrpcConfig, args.dapper_grpc, where="comm_args.dapper_grpc")
