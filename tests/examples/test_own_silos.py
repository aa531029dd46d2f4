"""The example of silos with pictures of their own: four processes, each in a folder with nothing but what is its."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedml_dapper.federation import read_ledger

from ..platform.nursery import Fork, nursery
from ..platform.processes import ROOT, free_port
from ..platform.timeless_server import let_time_pass, timeless_program
from ..waiting import wait_until
from .pictures import CLASSES, STYLES, make_style

EXAMPLE = ROOT / "examples" / "own_silos"


def place(folder: Path, name: str, certificates: Path) -> Path:
    """A process's folder: the shared file, the authority's certificate, and its own certificate and key."""
    (folder / "certs").mkdir(parents=True)
    shutil.copy(EXAMPLE / "shared.yaml", folder)
    for file in ("ca.pem", f"{name}.pem", f"{name}.key"):
        shutil.copy(certificates / file, folder / "certs")
    return folder


def silo(folder: Path, rank: int, style: str, certificates: Path) -> Path:
    """A silo's folder: with pictures of one style, and its own words on them."""
    place(folder, f"silo-{rank}", certificates)
    make_style(folder / "pictures", style)
    text = (EXAMPLE / "silo.yaml").read_text().replace("chalk", style).replace("level: 3", f"level: {rank}")
    (folder / "silo.yaml").write_text(text)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """The server's, and three silos'."""
    certificates = tmp_path / "authority"
    made = ["bash", ROOT / "run" / "make_certs.sh", certificates, "3"]
    subprocess.run(made, check=True, capture_output=True)
    server = place(tmp_path / "server", "server", certificates)
    silos = [silo(tmp_path / style, rank, style, certificates) for rank, style in enumerate(STYLES, start=1)]
    shutil.rmtree(certificates)
    return [server, *silos]


def words_of(rank: int, port: int) -> list[str]:
    role = ["--role", "client", "--cf", "silo.yaml"] if rank else ["--role", "server", "--output", "run"]
    settings = ["--set", f"comm_args.dapper_grpc.server_address=localhost:{port}", "--set", "threads=1"]
    return ["--cf", "shared.yaml", *role, "--rank", str(rank), *settings]


def environment_of(folder: Path) -> dict[str, str]:
    environment = os.environ | {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("DAPPER_DATA", None)
    return environment


def start(folder: Path, rank: int, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedml_dapper", *words_of(rank, port)]
    with (folder / "log.txt").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment_of(folder), stdout=log, stderr=log, text=True)


def start_warm(program: Sequence[str], folder: Path, rank: int, port: int) -> Fork:
    with (folder / "log.txt").open("w") as log:
        return nursery().start([*program, *words_of(rank, port)], folder, environment_of(folder), log.fileno())


@pytest.mark.nightly
def test_three_silos_train_on_what_is_theirs_and_the_server_holds_no_picture(folders: list[Path]) -> None:
    port = free_port()
    processes = [start(folder, rank, port) for rank, folder in enumerate(folders)]
    try:
        for process, folder in zip(processes, folders, strict=True):
            assert process.wait(600) == 0, (folder / "log.txt").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    server, *silos = folders
    assert not list(server.rglob("*.png"))
    run, rounds = read_ledger(server / "run" / "ledger.jsonl")
    assert (run.clients, run.domains, run.classes) == ((), (), CLASSES)
    assert len(rounds) == 3
    for record in rounds:
        assert [(client.domain, client.level) for client in record.clients] == list(zip(STYLES, (1, 2, 3), strict=True))
        assert record.scores is not None
        assert record.scores.domain_accuracy.keys() == STYLES.keys()
    told = (server / "run" / "ledger.jsonl").read_text() + (server / "log.txt").read_text()
    assert not any(str(silo) in told for silo in silos)  # no path of a silo's reaches the server


@pytest.mark.nightly
def test_classes_that_differ_between_silos_are_refused_naming_both(folders: list[Path], tmp_path: Path) -> None:
    port = free_port()
    odd = folders[1] / "shared.yaml"
    odd.write_text(odd.read_text().replace("bar, circle", "bear, circle"))
    shutil.move(folders[1] / "pictures" / "bar", folders[1] / "pictures" / "bear")
    shared = folders[0] / "shared.yaml"
    shared.write_text(shared.read_text() + "  join_timeout_s: 3600\n  min_clients_per_round: 1\n")
    server = start_warm([str(timeless_program(tmp_path))], folders[0], 0, port)
    processes = [server, start_warm(["-m", "fedml_dapper"], folders[1], 1, port)]
    try:
        wait_until(lambda: "rank 1 is there" in (folders[0] / "log.txt").read_text())
        let_time_pass(server)
        assert processes[1].wait(300) == 2, (folders[1] / "log.txt").read_text()
        log = (folders[1] / "log.txt").read_text()
        assert "data_args.classes is ['bar', 'circle'" in log
        assert "there and ['bear', 'circle'" in log
    finally:
        for process in processes:
            process.kill()
            process.wait()
