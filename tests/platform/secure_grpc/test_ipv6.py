"""Everything that dials or listens does so over IPv6 as well."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.commands import server_options
from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.addresses import is_loopback, join_address, split_address
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.monitor import Monitor
from fedml_dapper.operations.status import StatusBoard
from fedml_dapper.secure_grpc import Message, SecureServer

from ..processes import free_port, needs_ipv6
from .conftest import MAX_MESSAGE_MB, READY, Running, Starter, make_certificates
from .manager import Manager
from .raw_silo import CHECK, STATUS


@pytest.fixture(scope="module")
def certificates_of_ipv6(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("ipv6") / "certs", 2, hosts=["::1"])


@pytest.fixture
def over_ipv6(certificates_of_ipv6: Path) -> SecureGrpcConfig:
    address = f"[::1]:{free_port()}"
    return SecureGrpcConfig(server_address=address, certificates=certificates_of_ipv6, max_message_mb=MAX_MESSAGE_MB)


@needs_ipv6
@pytest.mark.parametrize("listens_on", ["itself", "all"])
def test_silo_and_server_talk_over_ipv6(start: Starter, over_ipv6: SecureGrpcConfig, listens_on: str) -> None:
    port = split_address(over_ipv6.server_address)[1]
    everywhere = over_ipv6.model_copy(update={"listen_address": f"[::]:{port}"})
    server, silo = start(0, over_ipv6 if listens_on == "itself" else everywhere), start(1, over_ipv6)
    silo.transport.send_message(Message(STATUS, 1, 0))
    assert server.next().get_type() == STATUS
    server.transport.send_message(Message(CHECK, 0, 1))
    assert silo.next().get_type() == CHECK


@needs_ipv6
@pytest.mark.parametrize("host", ["[::1]:{}", "::1", "[::1]"])
def test_an_operator_asks_over_ipv6(over_ipv6: SecureGrpcConfig, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = split_address(over_ipv6.server_address)[1]
    monkeypatch.setattr(server_options, "PORT", port)
    transport = SecureServer(over_ipv6, CredentialFiles(over_ipv6, 0), {1: "silo-1"}, AuditLog(None), Manager())
    server = Running(transport)
    assert server.next().get_type() == READY
    try:
        words = [host.format(port), "--certificates", str(over_ipv6.certificates)]
        asked = CliRunner().invoke(main, ["status", *words])
        assert asked.exit_code == 0, asked.output
        assert "round 3 of 10" in asked.output
    finally:
        server.stop()


@needs_ipv6
def test_health_is_answered_over_ipv6() -> None:
    port = free_port()
    monitor = Monitor("::1", port, StatusBoard().read, 1000)
    try:
        with urlopen(f"http://[::1]:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200
    finally:
        monitor.close()


def test_kits_dial_an_ipv6_address_in_brackets(certificates_of_ipv6: Path) -> None:
    kit = certificates_of_ipv6 / "kits" / "silo-1" / "connection.yaml"
    assert 'server_address: "[::1]:8890"' in kit.read_text()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("[::1]:8890", ("::1", 8890)),
        ("[2001:db8::1]:1", ("2001:db8::1", 1)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("server.example.org:8890", ("server.example.org", 8890)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
    ],
)
def test_an_address_is_taken_apart_and_put_together(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("::1:8890", r"an IPv6 address stands in brackets, e.g. \[2001:db8::1\]:8890, found ::1:8890"),
        ("[server]:8890", "expected an IPv6 address in brackets"),
        ("[::1]", "expected HOST:PORT"),
        ("[::1]:0", "expected HOST:PORT"),
        (":8890", "expected HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_said(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SecureGrpcConfig(server_address=address, certificates=Path())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["server.example.org", "10.0.0.1", "2001:db8::1", "localhost.example.org"])
def test_all_else_is_another_machine(host: str) -> None:
    assert not is_loopback(host)
