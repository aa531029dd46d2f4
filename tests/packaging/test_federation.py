"""The server and the silos of ``compose.yaml``, by their images' entry points, each in a bare folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import load_settings
from fedml_dapper.federation import read_ledger
from fedml_dapper.process.interruption import INTERRUPTED

from ..platform.processes import free_port
from ..platform.secure_grpc.conftest import make_certificates
from ..waiting import wait_until
from .bare import BUBBLEWRAP, Service
from .images import EXPERIMENT

SILOS = ("silo-1", "silo-2", "silo-3")
ROUNDS = 4
METHOD = """
import sys, time
from pathlib import Path
from fedml_dapper.methods.catalogue.dapperfl_slim import DapperFLSlim

def wait_for(file):
    print("waits for", file, flush=True)
    while not Path("/experiment", file).exists():
        time.sleep(0.05)  # between looks: files do not call

if {"--role", "server"} <= {*sys.argv}:
    wait_for("server")

class Waiting(DapperFLSlim):
    name = "waiting"

    def local_update(self, client, downlink):
        if (downlink.client_id, downlink.round) == (2, 2):
            wait_for("silo-3")
        return super().local_update(client, downlink)
"""
"""With it, a server is at its imports and a silo at its second round for as long as a test wants."""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[dict[str, Service]]:
    """Those of ``compose.yaml``, with its experiment in small and on a port of its own."""
    certificates = make_certificates(tmp_path / "certs", len(SILOS), hosts=("server",))
    small = {"comm_round": ROUNDS, "epochs": 1, "width": 8, "client_share": 0.08}
    place = {"comm_args.dapper_grpc.certificates": str(certificates)}
    content = yaml.safe_load(load_settings(EXPERIMENT, small | place).as_yaml())
    content["dapper_args"]["method"] = "waiting.py:Waiting"
    port = free_port()
    content["comm_args"]["dapper_grpc"] |= {"server_address": f"server:{port}", "listen_address": f"0.0.0.0:{port}"}
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    (experiment / EXPERIMENT.name).write_text(yaml.safe_dump(content))
    (experiment / "waiting.py").write_text(METHOD)
    services = {name: Service(name, tmp_path, experiment, certificates) for name in ("server", *SILOS)}
    yield services
    for service in services.values():
        service.end()


def wait_for(text: str, service: Service) -> None:
    wait_until(lambda: text in service.output(), otherwise=service.output)


@pytest.mark.nightly
@pytest.mark.skipif(BUBBLEWRAP is None, reason="no bwrap on this machine: apt-get install bubblewrap")
def test_a_stopped_server_goes_on_and_health_checks_tell(services: dict[str, Service], tmp_path: Path) -> None:
    server, silo = services["server"], services["silo-1"]
    ledger = tmp_path / "runs" / "federation" / "ledger.jsonl"
    server.start()
    silo.start()
    wait_for("waits for server", server)
    assert not server.healthy()  # it has only begun to import
    (tmp_path / "experiment" / "server").touch()
    wait_for("waiting for ranks", server)
    assert server.healthy()
    wait_for("connected to the server", silo)
    assert silo.healthy()

    for name in SILOS[1:]:
        services[name].start()
    wait_for("waits for silo-3", services["silo-3"])
    assert server.stop() == INTERRUPTED
    assert not server.healthy()
    assert not silo.healthy()
    assert len(read_ledger(ledger)[1]) == 1

    (tmp_path / "experiment" / "silo-3").touch()
    server.start()
    assert server.wait(300) == 0, server.output()
    assert [services[name].wait(120) for name in SILOS] == [0, 0, 0]
    assert f"going on after round 1/{ROUNDS}" in server.output()
    assert [record.round for record in read_ledger(ledger)[1]] == list(range(1, ROUNDS + 1))
