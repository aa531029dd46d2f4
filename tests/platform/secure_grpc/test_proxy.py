"""A silo or device reaches its server through the HTTP proxy that it is told, and through no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.proxy import proxy_for
from fedml_dapper.secure_grpc import Message, SecureSilo

from ...connect_proxy import ConnectProxy
from ..processes import free_port
from .conftest import MAX_MESSAGE_MB, Running, Starter, make_certificates
from .raw_silo import SECONDS, STATUS

NAME = "server.invalid"
"""A host that only a proxy can find."""


@pytest.fixture(scope="module")
def certificates_of_name(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("proxied") / "certs", 2, hosts=[NAME, "localhost"])


@pytest.fixture
def far(certificates_of_name: Path) -> SecureGrpcConfig:
    """A server of a name that this machine does not know, which listens on this machine."""
    port = free_port()
    return SecureGrpcConfig(
        server_address=f"{NAME}:{port}",
        listen_address=f"localhost:{port}",
        certificates=certificates_of_name,
        max_message_mb=MAX_MESSAGE_MB,
    )


def port_of(config: SecureGrpcConfig) -> int:
    return int(config.server_address.rpartition(":")[2])


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return


@pytest.mark.parametrize("by", ["setting", "environment"])
def test_a_silo_goes_through_the_proxy_to_a_name_that_the_proxy_alone_knows(
    start: Starter, far: SecureGrpcConfig, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(0, far)
    with ConnectProxy(port_of(far)) as proxy:
        if by == "environment":
            monkeypatch.setenv("http_proxy", proxy.url)
        through = far.model_copy(update={"http_proxy": proxy.url if by == "setting" else "environment"})
        silo = start(1, through)
        silo.transport.send_message(Message(STATUS, 1, 0))
        assert server.next().get_type() == STATUS
        assert proxy.asked[0] == f"CONNECT {far.server_address} HTTP/1.1"


def test_an_operator_s_commands_go_through_it_where_they_are_told(start: Starter, far: SecureGrpcConfig) -> None:
    start(0, far)
    place = ["--certificates", str(far.certificates)]
    with ConnectProxy(port_of(far)) as proxy:
        for words in (["status", far.server_address, "--json"], ["steer", far.server_address, "evict", "silo-2"]):
            assert "no server answers" in CliRunner().invoke(main, [*words, *place]).stderr
            told = CliRunner().invoke(main, [*words, *place, "--http-proxy", proxy.url])
            assert told.exit_code == 0, told.output
        assert proxy.asked == [f"CONNECT {far.server_address} HTTP/1.1"] * 2


@pytest.mark.parametrize(
    ("http_proxy", "environment", "found"),
    [
        (None, {"http_proxy": "http://a:1"}, None),
        ("http://b:2", {"http_proxy": "http://a:1"}, "http://b:2"),
        ("environment", {"http_proxy": "http://a:1", "https_proxy": "http://c:3"}, "http://c:3"),
        ("environment", {"http_proxy": "socks5://a:1"}, None),
        ("environment", {}, None),
        ("http://b:2", {"no_proxy": "example.org, INVALID"}, None),
        ("http://b:2", {"no_proxy": "example.org,", "no_grpc_proxy": "localhost"}, "http://b:2"),
    ],
)
def test_connections_without_grpc_find_the_proxy_that_grpc_finds(
    monkeypatch: pytest.MonkeyPatch, http_proxy: str | None, environment: dict[str, str], found: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(f"{NAME}:8890", http_proxy) == found
    assert proxy_for("[::1]:8890", http_proxy) is None


def test_no_proxy_names_hosts_that_are_reached_directly(
    start: Starter, far: SecureGrpcConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(0, far)
    with ConnectProxy(port_of(far)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "invalid")
        silo = SecureSilo(far.model_copy(update={"http_proxy": "environment"}), CredentialFiles(far, 1), 1, SECONDS)
        with pytest.raises(grpc.RpcError):
            silo.send_message(Message(STATUS, 1, 0))
        assert proxy.asked == []
        silo.stop_receive_message()


@pytest.mark.parametrize("setting", [None, "environment", "proxy"])
def test_this_machine_is_never_reached_through_a_proxy_and_no_other_without_the_setting(
    start: Starter, far: SecureGrpcConfig, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = far.model_copy(update={"server_address": far.listen_address})
    server = start(0, near)
    with ConnectProxy(port_of(far)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        silo = start(1, near.model_copy(update={"http_proxy": proxy.url if setting == "proxy" else setting}))
        silo.transport.send_message(Message(STATUS, 1, 0))
        assert server.next().get_type() == STATUS
        without = SecureSilo(far, CredentialFiles(far, 2), 2, SECONDS)
        with pytest.raises(grpc.RpcError):
            without.send_message(Message(STATUS, 2, 0))
        without.stop_receive_message()
        assert proxy.asked == []


def test_a_proxy_that_refuses_is_one_line_and_called_again(
    far: SecureGrpcConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConnectProxy(port_of(far), refuses=True) as proxy:
        through = far.model_copy(update={"http_proxy": proxy.url})
        silo = SecureSilo(through, CredentialFiles(far, 1), 1, give_up_after_s=0)
        running = Running(silo)
        failure = running.failures.get(timeout=SECONDS)
        assert str(failure).startswith(f"no server at {far.server_address} for 0 s, this silo gives up")
        assert "403" in str(failure)
        assert "\n" not in str(failure)
        running.stop()


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("proxy:3128", "expected `environment`, or http://HOST:PORT of a proxy, found proxy:3128"),
        ("https://proxy:3128", "expected `environment`, or http://HOST:PORT of a proxy"),
        ("http://proxy", "expected HOST:PORT"),
        ("http://me:secret@proxy:3128", "a proxy's password belongs in the environment variable http_proxy"),
    ],
)
def test_a_proxy_that_is_none_is_said(proxy: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SecureGrpcConfig(server_address="a:1", certificates=Path(), http_proxy=proxy)


def test_an_address_of_a_proxy_may_end_in_a_slash() -> None:
    assert (
        SecureGrpcConfig(server_address="a:1", certificates=Path(), http_proxy="http://[::1]:3128/").http_proxy
        == "http://[::1]:3128"
    )
