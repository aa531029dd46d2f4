"""A federation of real processes while its operator acts."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.operations import add_members, read_certificate, revoke_members

from ..processes import Silos
from .experiment_file import experiment_file

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def own(config: SecureGrpcConfig, certificates: Path, tmp_path: Path) -> SecureGrpcConfig:
    folder, members = shutil.copytree(certificates, tmp_path / "certs"), tmp_path / "lists" / "members.json"
    members.parent.mkdir()
    names = ["silo-1", "silo-2", "silo-3", "silo-4", "admin"]
    add_members(members, [read_certificate(folder / f"{name}.pem") for name in names])
    return config.model_copy(update={"certificates": folder, "members_file": members})


@pytest.fixture
def federation(tmp_path: Path, tiny_settings: SettingsFactory, own: SecureGrpcConfig) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(*overrides: str) -> Silos:
        four = ("client_num_in_total=4", "client_num_per_round=4", "threads=1", "epochs=1", "round_timeout_s=600")
        settings = tiny_settings(*four, *overrides)
        running.append(Silos(tmp_path, experiment_file(tmp_path, settings, own), 4))
        running[-1].start_all()
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def said(silos: Silos, text: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while text not in silos.output(0):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_silo_that_is_revoked_at_work_is_cut_off_and_the_run_ends_without_it(
    federation: Callable[..., Silos], own: SecureGrpcConfig
) -> None:
    silos = federation("comm_round=6")
    silos.wait_for_round(1)
    silos.processes[4].send_signal(signal.SIGSTOP)  # so that a round waits for it, for ten minutes if it has to
    time.sleep(2)
    done = len(silos.rounds())
    assert own.members_file is not None
    revoke_members(own.members_file, "silo-4")
    assert said(silos, "silo-4 is cut off", 1), silos.output(0)
    silos.wait_for_round(done + 1, 30)
    silos.processes[4].send_signal(signal.SIGCONT)
    assert silos.wait(0, 60) == 0, silos.output(0)
    assert [silos.wait(rank, 30) for rank in range(1, 5)] == [0, 0, 0, 2], silos.output(4)
    assert "of silo-4 was revoked on" in silos.output(4).splitlines()[-1]
    assert [record.absent for record in silos.rounds()] == [() for _ in range(done)] + [(3,) for _ in range(6 - done)]
