"""Certificates as users make them, and both ends of the transport on loopback with a manager that writes down."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.credentials import CredentialFiles
from fedml_dapper.operations import AuditLog, allowance
from fedml_dapper.platform.secure_grpc import SecureServer, SecureSilo, link
from fedml_dapper.platform.secure_grpc.endpoint import Endpoint

from ..processes import ROOT, free_port
from .manager import Manager
from .raw_silo import SECONDS

NUM_SILOS = 2
MAX_MESSAGE_MB = 4
READY = 0
"""FedML's type of the message by which a transport says that it is connected."""


def make_certificates(folder: Path, num_silos: int = 4, *edges: int, hosts: Sequence[str] = ()) -> Path:
    options = [part for rank in edges for part in ("--edge", str(rank))]
    command = ["bash", ROOT / "run" / "make_certs.sh", folder, str(num_silos), *options, *hosts]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("trusted") / "certs")


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same names, by an authority of their own."""
    return make_certificates(tmp_path_factory.mktemp("foreign") / "certs")


@pytest.fixture
def config(certificates: Path) -> SecureGrpcConfig:
    return SecureGrpcConfig(
        server_address=f"localhost:{free_port()}", certificates=certificates, max_message_mb=MAX_MESSAGE_MB
    )


class Running:
    """A transport that runs in a thread; what its manager is told is in ``told``, what ends it in ``failures``."""

    def __init__(self, transport: Endpoint) -> None:
        self.transport = transport
        self.told: queue.Queue[Message] = queue.Queue()
        self.failures: queue.Queue[Exception] = queue.Queue()
        transport.add_observer(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def receive_message(self, msg_type: Any, msg_params: Message) -> None:
        self.told.put(msg_params)

    def next(self, seconds: float = SECONDS) -> Message:
        return self.told.get(timeout=seconds)

    def nothing_else(self, seconds: float = 0.5) -> bool:
        try:
            self.told.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def stop(self) -> None:
        self.transport.stop_receive_message()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.transport.handle_receive_message()
        except Exception as error:  # noqa: BLE001  # for the test to look at
            self.failures.put(error)


@dataclass
class Clock:
    """Seconds that have passed, as a test has it."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which allowances fill up: it stands still, so that none lasts longer where the machine is slow."""
    made = Clock()
    monkeypatch.setattr(allowance, "time", made)
    return made


Starter = Callable[..., Running]


@pytest.fixture(autouse=True)
def _nobody_is_gone_because_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "AWAY_SECONDS", SECONDS)


@pytest.fixture
def start(config: SecureGrpcConfig) -> Iterator[Starter]:
    """``start(rank)`` or ``start(rank, config)``: that process's transport, connected."""
    running: list[Running] = []

    def begin(rank: int, settings: SecureGrpcConfig = config, ready: bool = True) -> Running:
        credentials = CredentialFiles(settings, rank)
        if rank == 0:
            silos = {silo: settings.name_of(silo) for silo in range(1, NUM_SILOS + 1)}
            transport: Endpoint = SecureServer(settings, credentials, silos, AuditLog(settings.audit_file), Manager())
        else:
            transport = SecureSilo(settings, credentials, rank, patience_s=SECONDS)
        running.append(Running(transport))
        if ready:
            assert running[-1].next().get_type() == READY
        return running[-1]

    yield begin
    for one in reversed(running):
        one.stop()
