"""A federation while its operator acts."""

from __future__ import annotations

import logging
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.federation import build_experiment
from fedml_dapper.operations import add_members, read_certificate, revoke_members
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.credentials import read_admin_credentials
from fedml_dapper.operations.orders import Act, Answer, Order, give_order
from fedml_dapper.operations.status import ServerStatus

from ...waiting import wait_until
from ..federation_in_threads import Federation
from ..processes import free_port
from .experiment_file import experiment_file, of_four
from .held import Hold
from .impostor import Impostor

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]


@pytest.fixture
def own(config: SecureGrpcConfig, certificates: Path, tmp_path: Path) -> SecureGrpcConfig:
    folder, members = shutil.copytree(certificates, tmp_path / "certs"), tmp_path / "lists" / "members.json"
    members.parent.mkdir()
    names = ["silo-1", "silo-2", "silo-3", "silo-4", "admin"]
    add_members(members, [read_certificate(folder / f"{name}.pem") for name in names])
    own = {"certificates": folder, "members_file": members, "audit_file": tmp_path / "audit.jsonl"}
    return config.model_copy(update={**own, "monitor_port": free_port()})


@pytest.mark.long
def test_a_silo_that_is_revoked_at_work_is_cut_off_and_the_run_ends_without_it(
    in_threads: InThreads, tiny_settings: SettingsFactory, own: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    file = experiment_file(tmp_path, of_four(tiny_settings, "comm_round=4"), own)
    federation, hold = in_threads(file, 4), Hold()
    for rank in range(4):
        federation.start(rank)
    federation.start(4, trainer=hold.trainer)
    hold.wait_until_at_work()
    federation.wait_for_all_but(4)
    assert own.members_file is not None
    revoke_members(own.members_file, "silo-4")
    wait_until(lambda: "silo-4 is cut off" in caplog.text)
    federation.wait_for_round(2)
    hold.let_go()
    federation.wait(0, 1, 2, 3)
    failure = federation.error_of(4)
    assert isinstance(failure, ConfigError)
    assert "of silo-4 was revoked on" in str(failure)
    assert [record.absent for record in federation.rounds()] == [(), (3,), (3,), (3,)]


@pytest.mark.nightly
def test_an_operator_pauses_evicts_resumes_and_ends_a_run(
    in_threads: InThreads, tiny_settings: SettingsFactory, own: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    settings = of_four(tiny_settings, "comm_round=500", "width=4")
    federation = in_threads(experiment_file(tmp_path, settings, own), 4)
    admin = read_admin_credentials(own)

    def order(act: Act, silo: int | None = None) -> Answer:
        return give_order(own.server_address, admin, Order(act=act, silo=silo))

    def reaches(is_so: Callable[[ServerStatus], bool]) -> ServerStatus:
        seen: list[ServerStatus] = []

        def is_reached() -> bool:
            seen.append(order("status").status)
            return is_so(seen[-1])

        wait_until(is_reached, otherwise=lambda: seen[-1])
        return seen[-1]

    federation.start_all()
    federation.wait_for_round(1)
    order("pause")
    paused = reaches(lambda status: status.state == "paused")
    assert [one.standing for one in paused.callers] == ["idle"] * 4
    assert min(one.bytes_in for one in paused.callers) > 1000
    Impostor(own, 1, build_experiment(settings)).come_online()  # at which a round would be opened
    assert own.audit_file is not None
    wait_until(lambda: {"started_again": 1} in [entry.detail for entry in entries_of(own.audit_file)])
    with pytest.raises(DapperError, match="paused, or about to be, already"):
        order("pause")
    assert order("status").status.state == "paused"
    assert len(federation.rounds()) == paused.round
    with urllib.request.urlopen(f"http://127.0.0.1:{own.monitor_port}/metrics", timeout=60) as answer:
        assert 'dapper_state{state="paused"} 1.0' in answer.read().decode()

    order("evict", 4)
    assert "the operator has evicted this silo" in str(federation.error_of(4))
    order("resume")
    reaches(lambda status: status.round >= paused.round + 2)
    assert order("status").status.out == {"silo-4": "evicted"}
    federation.start(4)
    turned_away = federation.error_of(4)  # as long as that is not lifted
    assert isinstance(turned_away, ConfigError)
    order("lift", 4)
    federation.start(4)
    back = reaches(lambda status: status.callers[3].standing in ("at work", "answered"))
    assert back.out == {}
    order("end")
    federation.wait()
    rounds = federation.rounds()
    assert back.round <= len(rounds) < 500
    assert {record.quarantined for record in rounds[: paused.round]} == {()}
    assert rounds[paused.round].quarantined == (3,)
    assert all(record.absent == () or record.round > 1 for record in rounds)
    acts = [entry.detail["act"] for entry in entries_of(own.audit_file) if entry.event == "order"]
    assert acts == ["pause", "evict", "resume", "lift", "end"]
