"""Certificates as users make them, and both ends of the transport on loopback with a manager that writes down."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.device import conversation, introduction
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.secure_grpc import SecureServer, SecureSilo, link
from fedml_dapper.secure_grpc.authenticator import LOOK_SECONDS
from fedml_dapper.secure_grpc.endpoint import Endpoint

from ...waiting import wait_until
from ..processes import ROOT, free_port
from .manager import Manager
from .raw_silo import SECONDS

NUM_SILOS = 2
MAX_MESSAGE_MB = 4
READY = 0
"""FedML's type of the message by which a transport says that it is connected."""
LAST = "last"
"""Type of a message that comes behind all others."""


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

    def __init__(self, transport: Any) -> None:
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

    def rest(self) -> list[Message]:
        """The messages that a server has received and not looked at. One message more comes behind all of them."""
        last = Message(LAST, 0, 0)
        self.transport._inbox.put(last)
        return list(iter(self.next, last))

    def nothing_else(self, silo: Running | None = None) -> bool:
        """Whether this server has been told nothing that was not looked at; or its ``silo``, whom it tells one thing
        more, which comes behind all others."""
        if silo is None:
            return not self.rest()
        self.transport.send_message(Message(LAST, 0, silo.transport._rank))
        return silo.next().get_type() == LAST

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

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until a test sets it: a server's allowances and its looks at files go by it."""
    return Clock()


def let_look(server: Running, clock: Clock) -> None:
    """Have a server of this clock look at its files, and wait until it has."""
    for _ in range(2):  # when the second look has begun, the first is over
        clock.now += 2 * LOOK_SECONDS
        wait_until(lambda: server.transport._authenticator._looked == clock.now)


Starter = Callable[..., Running]


@pytest.fixture(autouse=True)
def _nobody_is_gone_because_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "AWAY_SECONDS", SECONDS)


@pytest.fixture
def introduced_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``introduced_as(rank, version=..., schema=...)``: the silo of this rank says that of itself when it comes."""
    said: dict[int, dict[str, object]] = {}

    def introduce_as_told(status: Message) -> None:
        introduction.introduce(status)
        for key, value in said.get(status.get_sender_id(), {}).items():
            status.add_params(key, value)

    def say(rank: int, **words: object) -> None:
        said[rank] = words

    monkeypatch.setattr(conversation, "introduce", introduce_as_told)
    return say


@pytest.fixture
def start(config: SecureGrpcConfig) -> Iterator[Starter]:
    """``start(rank)`` or ``start(rank, config)``: that process's transport, connected, by a ``clock``."""
    running: list[Running] = []

    def begin(
        rank: int, settings: SecureGrpcConfig = config, ready: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> Running:
        credentials = CredentialFiles(settings, rank)
        if rank == 0:
            silos = {silo: settings.name_of(silo) for silo in range(1, NUM_SILOS + 1)}
            audit = AuditLog(settings.audit_file)
            transport: Endpoint = SecureServer(settings, credentials, silos, audit, Manager(), clock)
        else:
            transport = SecureSilo(settings, credentials, rank, SECONDS, clock)
        running.append(Running(transport))
        if ready:
            assert running[-1].next().get_type() == READY
        return running[-1]

    yield begin
    for one in reversed(running):
        one.stop()
