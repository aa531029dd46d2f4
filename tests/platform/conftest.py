"""A FedML process of its own, cut off from the network, with a private HOME; federations in threads of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .federation_in_threads import Federation

ROOT = Path(__file__).parents[2]

NETWORK_GUARD = """
import ipaddress, os, socket

def is_local(host):
    try:
        return host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

def guarded(name, original, address_of):
    def call(*args, **kwargs):
        address = address_of(*args)
        if isinstance(address, tuple) and not is_local(address[0]):
            with open(os.environ["NETWORK_LOG"], "a") as log:
                log.write(f"{name} {address!r}\\n")
            raise OSError("the network is refused in this test")
        return original(*args, **kwargs)
    return call

socket.socket.connect = guarded("connect", socket.socket.connect, lambda self, address: address)
socket.socket.connect_ex = guarded("connect_ex", socket.socket.connect_ex, lambda self, address: address)
socket.getaddrinfo = guarded("getaddrinfo", socket.getaddrinfo, lambda host, *rest: (host,))
"""


class OfflineProcess:
    """Starts commands and knows what they tried to reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "network.log"
        (folder / "sitecustomize.py").write_text(NETWORK_GUARD)

    @property
    def environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDML")}
        return kept | {
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
            "NETWORK_LOG": str(self._log),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def network_attempts(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@pytest.fixture
def offline(tmp_path: Path) -> OfflineProcess:
    return OfflineProcess(tmp_path)


@pytest.fixture
def tiny_file(tmp_path: Path, tiny_settings: Callable[..., object]) -> Path:
    """An experiment file of a few seconds."""
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny_settings().as_yaml())  # type: ignore[attr-defined]
    return file


@pytest.fixture
def in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, int], Federation]]:
    """``in_threads(config, num_silos)``: the experiment's server and silos, to be started."""
    pytest.importorskip("fedml", reason="fedml is not installed")
    from .federation_in_threads import Federation  # noqa: PLC0415  # it needs fedml

    running: list[Federation] = []

    def build(config: Path, num_silos: int) -> Federation:
        running.append(Federation(config, num_silos, tmp_path / "run", monkeypatch))
        return running[-1]

    yield build
    for federation in running:
        federation.stop()
