"""The list of certificates: what its commands write, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.locks import locked
from fedml_dapper.operations import Certificate, LastSeen, Member, Membership, read_certificate, read_membership
from fedml_dapper.operations.last_seen import LOCK_NAME, last_seen_file, read_last_seen
from fedml_dapper.operations.membership import MAX_BYTES, add_members, revoke_members

SCRIPT = Path(__file__).parents[2] / "run" / "make_certs.sh"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority") / "certs"
    subprocess.run(["bash", SCRIPT, folder, "8"], check=True, capture_output=True)
    return folder


@pytest.fixture
def members(tmp_path: Path) -> Path:
    return tmp_path / "members.json"


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["silos", *map(str, words)], env={"COLUMNS": "200"})


def test_added_listed_revoked(members: Path, certificates: Path) -> None:
    result = call("add", members, certificates / "silo-1.pem", certificates / "silo-2.pem", certificates / "admin.pem")
    assert result.exit_code == 0, result.output
    shown = read_certificate(certificates / "silo-1.pem")
    openssl = ["openssl", "x509", "-in", certificates / "silo-1.pem", "-noout", "-fingerprint", "-sha256"]
    words = subprocess.run(openssl, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]
    assert shown.fingerprint == words.replace(":", "").lower()  # so an operator can compare by telephone
    assert read_membership(members).refusal(shown) is None
    assert call("revoke", members, words[:23], "--reason", "left").exit_code == 0  # colons and capitals do
    assert "was revoked on" in (read_membership(members).refusal(shown) or "")
    assert read_membership(members).refusal(read_certificate(certificates / "silo-2.pem")) is None

    last_seen = LastSeen(members)
    last_seen.note(shown.fingerprint)
    last_seen.save(at_once=True)
    [one, two, admin] = json.loads(call("list", members, "--json").stdout)
    assert (one["name"], one["reason"], one["seen"]["first"]) == ("silo-1", "left", one["seen"]["last"])
    assert (two["name"], two["seen"], admin["name"]) == ("silo-2", None, "admin")
    table = call("list", members).stdout
    assert [
        text for text in ("silo-1", "revoked 20", "may call", shown.fingerprint[:16], "left") if text not in table
    ] == []


def test_who_was_revoked_has_expired_or_is_listed_as_another_may_not_call() -> None:
    now = datetime.now(timezone.utc)
    one = Member(fingerprint="1" * 64, name="silo-1", expires=now + timedelta(days=1), added=now)
    others = {
        "revoked": one.model_copy(update={"fingerprint": "2" * 64, "revoked": now}),
        "expired": one.model_copy(update={"fingerprint": "3" * 64, "expires": now - timedelta(days=1)}),
    }
    assert one.is_allowed
    assert [name for name, member in others.items() if member.is_allowed] == []
    listed = Membership(members=(one,))
    assert listed.refusal(Certificate(one.fingerprint, "silo-1", one.expires)) is None
    for stranger in (Certificate(one.fingerprint, "silo-2", one.expires), Certificate("4" * 64, "silo-1", one.expires)):
        assert listed.refusal(stranger) == "is not in the list of members"


def test_a_name_stands_for_all_of_its_certificates(members: Path, certificates: Path, tmp_path: Path) -> None:
    first = (certificates / "silo-3.pem").read_bytes()
    (tmp_path / "first.pem").write_bytes(first)
    subprocess.run(["bash", SCRIPT, certificates, "--renew", "silo-3"], check=True, capture_output=True)
    call("add", members, tmp_path / "first.pem", certificates / "silo-3.pem", certificates / "silo-4.pem")
    assert call("revoke", members, "silo-3").stdout.count("silo-3 may no longer call") == 2
    assert [member.is_allowed for member in read_membership(members).members] == [False, False, True]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "MEMBERS", "CERTS/silo-1.pem"), "of silo-1 is there already"),
        (("add", "MEMBERS", "CERTS/silo-2.pem"), "was revoked on"),
        (("add", "MEMBERS", "CERTS/silo-5.pem", "CERTS/silo-1.pem"), "is there already"),
        (("add", "MEMBERS", "CERTS/server.pem"), "'server' calls no server"),
        (("add", "MEMBERS", "CERTS/ca.pem"), "calls no server"),
        (("add", "MEMBERS", "CERTS/ca.key"), "expected a certificate (PEM)"),
        (("add", "MEMBERS", "CERTS/nobody.pem"), "No such file"),
        (("add", "no/folder/members.json", "CERTS/silo-5.pem"), "no folder no/folder"),
        (("revoke", "MEMBERS", "silo-2"), "no certificate of 'silo-2' that is not revoked"),
        (("revoke", "MEMBERS", "abc"), "no certificate of 'abc'"),
        (("revoke", "MEMBERS", ""), "no certificate of ''"),
        (("list", "CERTS/nothing.json"), "silos add"),
    ],
)
def test_what_is_refused_is_one_line_and_changes_nothing(
    members: Path, certificates: Path, words: tuple[str, ...], reason: str
) -> None:
    call("add", members, certificates / "silo-1.pem", certificates / "silo-2.pem")
    call("revoke", members, "silo-2")
    before = members.read_bytes()
    result = call(*(word.replace("MEMBERS", str(members)).replace("CERTS", str(certificates)) for word in words))
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert members.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a list of members"),
        (b"{}x", "not a list of members"),
        (b'{"members": [{"fingerprint": "ab"}]}', "members.0.fingerprint"),
        (b'{"members": [], "everyone": true}', "everyone"),
        (b'{"members": [' + b"[" * 100_000, "not a list of members"),
        (b" " * (MAX_BYTES + 1), "at most 8 MiB"),
    ],
)
def test_a_file_that_is_no_list(members: Path, content: bytes, reason: str) -> None:
    members.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_membership(members)


def test_a_pipe_is_not_waited_for(members: Path) -> None:
    os.mkfifo(members)
    with pytest.raises(ConfigError, match="it is no plain file"):
        read_membership(members)
    os.mkfifo(last_seen_file(members))
    assert read_last_seen(members) == {}


def test_the_list_on_the_terminal_holds_no_orders_to_it(members: Path, certificates: Path) -> None:
    add_members(members, [read_certificate(certificates / "silo-1.pem")])
    revoke_members(members, "silo-1", "gone\x1b[2J\x9b2Jaway")
    shown = CliRunner().invoke(main, ["silos", "list", str(members)], env={"COLUMNS": "160"}).stdout
    assert "gone?[2J?2Jaway" in " ".join(shown.split())
    assert not any(letter in shown for letter in "\x1b\x9b")


def test_a_line_twice_and_a_name_that_is_none(members: Path, certificates: Path) -> None:
    call("add", members, certificates / "silo-1.pem")
    document = json.loads(members.read_text())
    for change in ({"members": document["members"] * 2}, {"members": [document["members"][0] | {"name": "silo-1\n"}]}):
        members.write_text(json.dumps(change))
        with pytest.raises(ConfigError, match=r"stands there twice|expected silo-RANK"):
            read_membership(members)


def test_commands_at_the_same_time_lose_nothing(members: Path, certificates: Path) -> None:
    shown = [read_certificate(certificates / f"silo-{rank}.pem") for rank in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: add_members(members, [one]), shown))
    assert {member.name for member in read_membership(members).members} == {f"silo-{rank}" for rank in range(1, 9)}


def test_a_server_waits_for_nobody_who_holds_the_folder(members: Path, certificates: Path) -> None:
    call("add", members, certificates / "silo-1.pem")
    last_seen = LastSeen(members)
    last_seen.note("0" * 64)
    with locked(members.with_name(LOCK_NAME)):
        last_seen.save(at_once=True)
    assert json.loads(call("list", members, "--json").stdout)[0]["seen"] is None
    last_seen.save(at_once=True)
    assert members.with_suffix(".seen.json").exists()
