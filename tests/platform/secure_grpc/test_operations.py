"""A federation of real processes while its operator acts."""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.credentials import read_admin_credentials
from fedml_dapper.errors import DapperError
from fedml_dapper.operations import add_members, read_certificate, revoke_members
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.orders import Act, Answer, Order, give_order
from fedml_dapper.operations.status import ServerStatus

from ..processes import Silos, free_port
from ..slow_silo import AT_WORK, busy_program, let_go
from .experiment_file import experiment_file

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def own(config: SecureGrpcConfig, certificates: Path, tmp_path: Path) -> SecureGrpcConfig:
    folder, members = shutil.copytree(certificates, tmp_path / "certs"), tmp_path / "lists" / "members.json"
    members.parent.mkdir()
    names = ["silo-1", "silo-2", "silo-3", "silo-4", "admin"]
    add_members(members, [read_certificate(folder / f"{name}.pem") for name in names])
    own = {"certificates": folder, "members_file": members, "audit_file": tmp_path / "audit.jsonl"}
    return config.model_copy(update={**own, "monitor_port": free_port()})


@pytest.fixture
def federation(tmp_path: Path, tiny_settings: SettingsFactory, own: SecureGrpcConfig) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(*overrides: str, programs: Mapping[int, Path] | None = None) -> Silos:
        four = ("client_num_in_total=4", "client_num_per_round=4", "threads=1", "epochs=1")
        settings = tiny_settings(*four, *overrides)
        running.append(Silos(tmp_path, experiment_file(tmp_path, settings, own), 4, programs=programs))
        running[-1].start_all()
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def test_a_silo_that_is_revoked_at_work_is_cut_off_and_the_run_ends_without_it(
    federation: Callable[..., Silos], own: SecureGrpcConfig, tmp_path: Path
) -> None:
    silos = federation("comm_round=6", programs={4: busy_program(tmp_path)})
    silos.wait_for_words(AT_WORK, rank=4)
    silos.wait_for_answers_of_all_but(4)
    assert own.members_file is not None
    revoke_members(own.members_file, "silo-4")
    silos.wait_for_words("silo-4 is cut off")
    silos.wait_for_round(2)
    let_go(tmp_path)
    assert silos.wait(0) == 0, silos.output(0)
    assert [silos.wait(rank) for rank in range(1, 5)] == [0, 0, 0, 2], silos.output(4)
    assert "of silo-4 was revoked on" in silos.output(4).splitlines()[-1]
    assert [record.absent for record in silos.rounds()] == [()] + [(3,)] * 5


def test_an_operator_pauses_evicts_resumes_and_ends_a_run(
    federation: Callable[..., Silos], own: SecureGrpcConfig, tmp_path: Path
) -> None:
    silos = federation("comm_round=500")
    admin = read_admin_credentials(own)

    def order(act: Act, silo: int | None = None) -> Answer:
        return give_order(own.server_address, admin, Order(act=act, silo=silo))

    def reaches(is_so: Callable[[ServerStatus], bool]) -> ServerStatus:
        deadline = time.monotonic() + 120
        while not is_so(status := order("status").status):
            assert time.monotonic() < deadline, status
            time.sleep(0.1)  # or it would call too often
        return status

    silos.wait_for_round(1)
    order("pause")
    paused = reaches(lambda status: status.state == "paused")
    assert [one.standing for one in paused.callers] == ["idle"] * 4
    assert min(one.bytes_in for one in paused.callers) > 1000
    time.sleep(1)
    assert len(silos.rounds()) == paused.round
    with pytest.raises(DapperError, match="paused, or about to be, already"):
        order("pause")
    with urllib.request.urlopen(f"http://127.0.0.1:{own.monitor_port}/metrics", timeout=60) as answer:
        assert 'dapper_state{state="paused"} 1.0' in answer.read().decode()

    order("evict", 4)
    assert silos.wait(4) == 2
    assert "the operator has evicted this silo" in silos.output(4).splitlines()[-1]
    order("resume")
    reaches(lambda status: status.round >= paused.round + 2)
    assert order("status").status.out == {"silo-4": "evicted"}
    silos.start(4)
    assert silos.wait(4) == 2  # turned away, as long as that is not lifted
    order("lift", 4)
    silos.start(4)
    back = reaches(lambda status: status.callers[3].standing in ("at work", "answered"))
    assert back.out == {}
    order("end")
    assert silos.wait(0) == 0, silos.output(0)
    assert [silos.wait(rank) for rank in range(1, 5)] == [0, 0, 0, 0]
    rounds = silos.rounds()
    assert back.round <= len(rounds) < 500
    assert {record.quarantined for record in rounds[: paused.round]} == {()}
    assert rounds[paused.round].quarantined == (3,)
    assert all(record.absent == () or record.round > 1 for record in rounds)
    assert own.audit_file is not None
    acts = [entry.detail["act"] for entry in entries_of(own.audit_file) if entry.event == "order"]
    assert acts == ["pause", "evict", "resume", "lift", "end"]
