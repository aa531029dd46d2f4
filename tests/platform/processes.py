"""Federations of real processes for tests: started, watched, killed, and gone at the end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import parse_override
from fedml_dapper.federation import RoundRecord, read_ledger

from ..waiting import wait_until
from .nursery import Fork, nursery

ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / "config" / "cross_silo.yaml"
BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
needs_broker = pytest.mark.skipif(BROKER is None, reason="no mosquitto on this machine: apt-get install mosquitto")


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
_CLAIMS: list[socket.socket] = []
"""One a port that this process gave away; they end with it."""


def free_port() -> int:
    """A port that nobody listens on, and that no call of this function gives away again, in whatever test process of
    this machine. It lies below those that the system gives to outgoing connections, which come and go."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0a test's port {port}")  # an abstract address: one process of the machine has it
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        return port


def address_table(folder: Path, num_clients: int) -> Path:
    """A gRPC address table on free loopback ports."""
    table = folder / "grpc_ipconfig.csv"
    rows = [f"{rank},{rank},127.0.0.1,{free_port()}" for rank in range(num_clients + 1)]
    table.write_text("\n".join(["eid,rank,grpc_server_ip,grpc_server_port", *rows]) + "\n")
    return table


def fedml_grpc(folder: Path, num_clients: int) -> dict[str, object]:
    """``comm_args`` of FedML's gRPC on loopback."""
    return {"backend": "GRPC", "allow_pickle": True, "grpc_ipconfig_path": str(address_table(folder, num_clients))}


class Silos:
    """A server and clients, each ``python -m fedml_dapper`` in a process of its own, with its output in a file.

    They start warm, but for the ranks in ``cold``, which start as a command line does; those in ``programs`` run a
    program of the user's own.
    """

    def __init__(
        self, folder: Path, config: Path, num_clients: int, overrides: Sequence[str] = (), cold: Sequence[int] = (),
        programs: Mapping[int, Path] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.num_clients = folder, config, num_clients
        self.run_dir = folder / "run"
        self._overrides = [part for override in overrides for part in ("--set", override)]
        self._cold = cold
        self._programs = programs or {}
        self.processes: dict[int, subprocess.Popen[bytes] | Fork] = {}

    def start(
        self, rank: int, config: Path | None = None, program: Path | None = None, above: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Start one process, of another experiment, as a program of the user's own, or with a file laid over the
        experiment, where given; the server goes on with the run that is there."""
        role = ["--role", "client" if rank <= self.num_clients else "edge"]
        if rank == 0:
            role = ["--role", "server", "--output", str(self.run_dir), "--resume"]
        program = program or self._programs.get(rank)
        what = ["-m", "fedml_dapper"] if program is None else [str(program)]
        files = ["--cf", str(config or self.config), *([] if above is None else ["--cf", str(above)])]
        arguments = [*what, *files, "--rank", str(rank), *role, *options, *self._overrides]
        environment = os.environ | {"HOME": str(self.folder), "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "ERROR"}
        with self._log(rank).open("ab") as log:
            if rank in self._cold:
                self.processes[rank] = subprocess.Popen(
                    [sys.executable, *arguments], cwd=self.folder, env=environment, stdout=log, stderr=log
                )
            else:
                self.processes[rank] = nursery().start(arguments, self.folder, environment, log.fileno())

    def start_all(self) -> None:
        for rank in range(self.num_clients + 1):
            self.start(rank)

    def output(self, rank: int) -> str:
        return self._log(rank).read_text(errors="replace")

    def rounds(self) -> list[RoundRecord]:
        ledger = self.run_dir / "ledger.jsonl"
        return read_ledger(ledger)[1] if ledger.exists() and ledger.read_bytes().count(b"\n") else []

    def wait_for_round(self, round_: int, seconds: float = 300) -> None:
        def has_closed() -> bool:
            ended = self.processes[0].poll() is not None
            closed = len(self.rounds()) >= round_
            assert closed or not ended, self.output(0)
            return closed

        wait_until(has_closed, seconds, lambda: self.output(0))

    def wait_for_answers_of_all_but(self, rank: int) -> None:
        """Until the open round waits for this client alone, which is not to answer meanwhile."""
        others = set(range(1, self.num_clients + 1)) - {rank}

        def have_answered() -> bool:
            answer = f"round {len(self.rounds()) + 1}, loss"
            return others == {other for other in range(1, self.num_clients + 1) if answer in self.output(other)}

        wait_until(have_answered, otherwise=lambda: self.output(0))

    def wait_for_words(self, *words: str, rank: int = 0) -> None:
        """Until the process has said all of them."""
        said = partial(self.output, rank)
        wait_until(lambda: all(text in said() for text in words), otherwise=said)

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait()

    def wait(self, rank: int, seconds: float = 600) -> int:
        return self.processes[rank].wait(seconds)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.log"


def listens(port: int) -> bool:
    """Whether somebody takes calls at this port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


@contextmanager
def mqtt_services(folder: Path) -> Iterator[list[str]]:
    """mosquitto and moto's S3 server on loopback; yields the overrides that point an experiment at them."""
    assert BROKER is not None
    mqtt, s3 = free_port(), free_port()
    (folder / "mosquitto.conf").write_text(f"listener {mqtt} 127.0.0.1\nallow_anonymous true\npersistence false\n")
    with (folder / "services.log").open("wb") as log:
        services = [
            subprocess.Popen([BROKER, "-c", folder / "mosquitto.conf"], stdout=log, stderr=log),
            subprocess.Popen(
                [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(s3)],
                stdout=log,
                stderr=log,
            ),
        ]
    endpoint = f"http://127.0.0.1:{s3}"
    try:
        wait_until(partial(listens, s3), otherwise=(folder / "services.log").read_text)
        subprocess.run([sys.executable, ROOT / "run" / "make_bucket.py", endpoint], check=True, timeout=300)
        yield [
            f"comm_args.customized_training_mqtt_config.BROKER_PORT={mqtt}",
            f"comm_args.customized_training_s3_config.CN_S3_ENDPOINT={endpoint}",
        ]
    finally:
        for service in services:
            service.terminate()
            service.wait(300)


def put_into(config: Path, addresses: Sequence[str]) -> None:
    """Write the addresses of services into an experiment's file, as a program of one's own takes no overrides."""
    content = yaml.safe_load(config.read_text())
    for address in addresses:
        parse_override(content, address)
    config.write_text(yaml.safe_dump(content))


def objects_left(overrides: Sequence[str]) -> int:
    endpoint = next(text.partition("=")[2] for text in overrides if "ENDPOINT" in text)
    command = [sys.executable, ROOT / "run" / "make_bucket.py", "--count", endpoint]
    return int(subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout)
