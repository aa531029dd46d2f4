"""Orders of an operator on loopback: who may give them, and where they are carried out."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result

from fedml_dapper import __version__
from fedml_dapper.cli import main
from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import DapperError
from fedml_dapper.operations import AuditLog, add_members, read_certificate, revoke_members
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.credentials import CredentialFiles, Credentials, read_admin_credentials, read_credentials
from fedml_dapper.operations.orders import STEER, Order, give_order
from fedml_dapper.secure_grpc import SecureServer
from fedml_dapper.secure_grpc.link import CALLS_AT_ONCE

from ...waiting import wait_until
from .conftest import Clock, Running, let_look
from .manager import Manager, Waiting
from .raw_silo import DELIVER, FETCH, TRY_UP, RawSilo, parcel, refused


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def own(config: SecureGrpcConfig, certificates: Path, tmp_path: Path) -> SecureGrpcConfig:
    folder, members = shutil.copytree(certificates, tmp_path / "certs"), tmp_path / "members.json"
    add_members(members, [read_certificate(folder / f"{name}.pem") for name in ("silo-1", "silo-2", "admin")])
    own = {"certificates": folder, "members_file": members, "audit_file": tmp_path / "audit.jsonl"}
    return config.model_copy(update=own)


@pytest.fixture
def server(own: SecureGrpcConfig, manager: Manager, clock: Clock) -> Iterator[Running]:
    callers = {1: "silo-1", 2: "silo-2"}
    transport = SecureServer(own, CredentialFiles(own, 0), callers, AuditLog(own.audit_file), manager, clock)
    manager.board.callers = transport.figures
    running = Running(transport)
    running.next()
    yield running
    running.stop()


@pytest.fixture
def admin(own: SecureGrpcConfig) -> Credentials:
    return read_admin_credentials(own)


def command(own: SecureGrpcConfig, *words: str) -> Result:
    certificates = ["--certificates", str(own.certificates)]
    return CliRunner().invoke(main, [words[0], own.server_address, *words[1:], *certificates], env={"COLUMNS": "150"})


def test_an_admin_sees_and_steers_and_it_is_written_down(server: Running, own: SecureGrpcConfig) -> None:
    RawSilo(own, read_credentials(own, 1)).deliver(parcel(b"x" * 10).frames())
    shown = command(own, "status")
    assert shown.exit_code == 0, shown.output
    for text in ("round 3 of 10", "silo-1", "at work", "silo-2", "never", "memory"):
        assert text in shown.stdout
    status = json.loads(command(own, "status", "--json").stdout)
    assert [(one["name"], one["connected"], one["bytes_in"]) for one in status["callers"]] == [
        ("silo-1", True, 10), ("silo-2", False, 0)
    ]  # fmt: skip
    refused(lambda: RawSilo(own, read_credentials(own, 3)).deliver(parcel(sender=3).frames()))
    assert json.loads(command(own, "status", "--json").stdout)["refused_strangers"] == 1
    assert command(own, "steer", "evict", "silo-2").stdout == "done: evict\n"
    assert "refuses: the run is not paused" in command(own, "steer", "resume").stderr
    orders = [(one.event, one.detail["act"], one.detail["silo"]) for one in audit(own) if "order" in one.event]
    assert orders == [("order", "evict", 2), ("order_refused", "resume", 0)]


def audit(own: SecureGrpcConfig) -> list:
    assert own.audit_file is not None
    return list(entries_of(own.audit_file))


def test_no_silo_gives_orders_and_no_admin_is_a_silo(
    server: Running, own: SecureGrpcConfig, manager: Manager, admin: Credentials
) -> None:
    for rank in (1, 2):
        with pytest.raises(DapperError, match=f"orders are for the certificate of `admin` alone.*silo-{rank}"):
            give_order(own.server_address, read_credentials(own, rank), Order(act="pause"))
        with pytest.raises(DapperError, match="orders are for"):
            give_order(own.server_address, read_credentials(own, rank), Order(act="status"))
    with pytest.raises(DapperError, match="no server answers"):  # TLS takes no server's certificate from a caller
        give_order(own.server_address, read_credentials(own, 0), Order(act="pause"))
    for method in (DELIVER, FETCH, TRY_UP):
        call = RawSilo(own, admin).begin_wordless(method)
        status, reason = refused(lambda call=call: next(call))
        assert (status, "`admin` is no silo's" in reason) == (grpc.StatusCode.PERMISSION_DENIED, True)
    assert manager.asked == []


@pytest.mark.parametrize(
    "newer", [{"state": "migrating"}, {"round": "three"}, {"callers": None}], ids=["word", "type", "left out"]
)
def test_an_answer_in_a_form_that_this_version_does_not_know_is_one_line(
    server: Running, own: SecureGrpcConfig, manager: Manager, monkeypatch: pytest.MonkeyPatch, newer: dict[str, object]
) -> None:
    of_another_version = manager.status().model_copy(update=newer)
    monkeypatch.setattr(manager, "status", lambda: of_another_version)
    said = (
        f"fedml-dapper: the server at {own.server_address} answers in a form that fedml_dapper {__version__} does not"
    )
    for words in (["status"], ["status", "--json"], ["steer", "pause"]):
        refused = command(own, *words)
        assert refused.exit_code == 2
        [line] = refused.stderr.splitlines()
        assert line.startswith(said)
        assert ("whether it carried out `pause`" in line) is ("pause" in words)
    assert [order.act for order, _ in manager.asked] == ["pause"]


def test_an_admin_that_is_not_listed_or_revoked_gives_none(
    server: Running, own: SecureGrpcConfig, manager: Manager, admin: Credentials, clock: Clock
) -> None:
    assert own.members_file is not None
    give_order(own.server_address, admin, Order(act="pause"))
    revoke_members(own.members_file, "admin")
    let_look(server, clock)
    with pytest.raises(DapperError, match="of admin was revoked on"):
        give_order(own.server_address, admin, Order(act="pause"))
    assert [order.act for order, _ in manager.asked] == ["pause"]


def test_an_order_that_the_server_is_too_busy_for_is_never_carried_out(
    server: Running, own: SecureGrpcConfig, manager: Manager, admin: Credentials
) -> None:
    manager.is_busy = True
    end = Order(act="end")
    failures: list[DapperError] = []

    def give() -> None:
        try:
            give_order(own.server_address, admin, end)
        except DapperError as error:
            failures.append(error)

    first = threading.Thread(target=give)
    first.start()
    wait_until(lambda: manager.asked)
    with pytest.raises(DapperError, match="another order is being carried out"):
        give_order(own.server_address, admin, Order(act="pause"))
    [(order, future)] = manager.asked
    assert isinstance(future, Waiting)
    future.time_is_up.set()
    first.join(60)
    assert "heard nothing of the order; try again" in str(failures[0])
    assert order == end
    assert not future.set_running_or_notify_cancel()
    assert give_order(own.server_address, admin, Order(act="status")).status.round == 3


@pytest.mark.parametrize(
    "request_", [b"", b"{}", b'{"act": "shutdown"}', b'{"act": "evict"}', b'{"act": "pause", "silo": 1}', b"x" * 5000]
)
def test_what_is_no_order_is_refused(
    server: Running, own: SecureGrpcConfig, manager: Manager, admin: Credentials, request_: bytes
) -> None:
    tls = grpc.ssl_channel_credentials(admin.authority, admin.key, admin.certificate)
    with grpc.secure_channel(own.server_address, tls) as channel:
        call = channel.stream_stream(STEER)(iter([request_] if request_ else []), timeout=30)
        assert refused(lambda: next(call))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert manager.asked == []


@pytest.mark.long
def test_orders_have_the_limits_of_other_calls(server: Running, own: SecureGrpcConfig, admin: Credentials) -> None:
    tls = grpc.ssl_channel_credentials(admin.authority, admin.key, admin.certificate)
    with grpc.secure_channel(own.server_address, tls) as channel:
        ask, order = channel.stream_stream(STEER), Order(act="status").model_dump_json().encode()
        count = 0
        assert refused(lambda: next(ask(iter([order]))))[0] is grpc.StatusCode.INVALID_ARGUMENT  # without a deadline
        with pytest.raises(grpc.RpcError) as caught:  # noqa: PT012  # one of them, no matter which
            for _ in range(10_000):
                list(ask(iter([order]), timeout=30))
                count += 1
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert count >= CALLS_AT_ONCE - 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("steer", "evict"), "evict goes with a silo"),
        (("steer", "pause", "silo-1"), "pause goes without a silo"),
        (("steer", "evict", "silo-1; rm"), "is no silo"),
    ],
)
def test_a_slip_in_a_command_is_one_line(own: SecureGrpcConfig, words: tuple[str, ...], said: str) -> None:
    result = command(own, *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


def test_where_no_server_is_one_line_says_so(own: SecureGrpcConfig) -> None:
    result = command(own, "status")
    assert result.exit_code == 2
    assert "no server answers at localhost" in result.stderr
