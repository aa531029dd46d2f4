"""Who is let in changes while server and silos run: members, certificates, authorities, tokens."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations import Membership, add_members, read_certificate, read_last_seen, revoke_members
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.secure_grpc import CUT_OFF, link
from fedml_dapper.secure_grpc import server as server_module
from fedml_dapper.secure_grpc.authenticator import LOOK_SECONDS
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES

from ...waiting import wait_until
from ..processes import ROOT
from .conftest import Clock, Running, Starter, let_look, make_certificates
from .raw_silo import CHECK, OWN_CONNECTION, SECONDS, STATUS, RawSilo, begun, parcel, refused


@pytest.fixture
def own(config: SecureGrpcConfig, certificates: Path, tmp_path: Path) -> SecureGrpcConfig:
    """The configuration with certificates that a test may change, and a list of members: silos 1 and 2."""
    folder = shutil.copytree(certificates, tmp_path / "certs")
    members = tmp_path / "members.json"
    add_members(members, [read_certificate(folder / f"silo-{rank}.pem") for rank in (1, 2)])
    return config.model_copy(update={"certificates": folder, "members_file": members})


def renew(folder: Path, *names: str) -> None:
    options = [part for name in names for part in ("--renew", name)]
    subprocess.run(["bash", ROOT / "run" / "make_certs.sh", folder, *options], check=True, capture_output=True)


def members_of(config: SecureGrpcConfig) -> Path:
    assert config.members_file is not None
    return config.members_file


def status(rank: int, **params: Any) -> Message:
    made = Message(STATUS, rank, 0)
    for key, value in params.items():
        made.add_params(key, value)
    return made


def passes(server: Running, silo: Running, rank: int) -> None:
    """A message passes in each direction."""
    silo.transport.send_message(status(rank))
    assert server.next().get_sender_id() == rank
    server.transport.send_message(Message(CHECK, 0, rank))
    assert silo.next().get_type() == CHECK


def code_of(peer: RawSilo, rank: int = 1, counter: int = 1) -> grpc.StatusCode | None:
    """How a delivery ends; None where it is taken."""
    try:
        peer.deliver(parcel(sender=rank, counter=counter, session=os.urandom(16).hex()).frames())
    except grpc.RpcError as error:
        return error.code()
    return None


def test_a_revoked_silo_is_cut_off_when_the_server_looks_which_it_does_within_a_second(
    start: Starter, own: SecureGrpcConfig, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert LOOK_SECONDS + server_module._POLL_SECONDS < 1
    server, one, two = start(0, own, clock=clock), start(1, own), start(2, own)
    let_look(server, clock)  # the look that it begins with must not come later
    passes(server, one, 1)
    raw = RawSilo(own, read_credentials(own, 1))
    whole = parcel(os.urandom(2 * FRAME_BYTES))
    go_on = threading.Event()

    def slowly() -> Iterator[bytes]:
        first, *rest = whole.frames()
        yield first
        go_on.wait(SECONDS)
        yield from rest

    upload = begun(lambda: raw, slowly)
    revoke_members(members_of(own), "silo-1", "left the federation")
    for _ in range(2):  # between these it might look, but for its clock
        passes(server, two, 2)
    assert server.nothing_else(one)
    clock.now += 2 * LOOK_SECONDS
    told = server.next()
    assert (told.get_type(), told.get_sender_id()) == (CUT_OFF, 1)
    assert refused(upload.result)[0] is grpc.StatusCode.CANCELLED
    go_on.set()
    failure = one.failures.get(timeout=60)
    assert isinstance(failure, ConfigError)
    assert "of silo-1 was revoked on" in str(failure)
    assert code_of(raw) is grpc.StatusCode.PERMISSION_DENIED  # on the connection that it had
    passes(server, two, 2)
    assert server.nothing_else()
    assert "silo-1 is cut off" in caplog.text


def test_another_certificate_of_the_same_name_has_to_be_listed_too(start: Starter, own: SecureGrpcConfig) -> None:
    server = start(0, own)
    first = RawSilo(own, read_credentials(own, 1))
    renew(own.certificates, "silo-1")
    second = RawSilo(own, read_credentials(own, 1))
    assert (code_of(first), code_of(second)) == (None, grpc.StatusCode.PERMISSION_DENIED)
    add_members(members_of(own), [read_certificate(own.certificates / "silo-1.pem")])
    wait_until(lambda: code_of(second) is None)
    revoke_members(members_of(own), read_certificate(certificate_in_kit(own)).fingerprint)
    wait_until(lambda: code_of(second) is grpc.StatusCode.PERMISSION_DENIED)
    assert code_of(first) is None
    kinds = {server.next().get_type() for _ in range(3)}
    assert CUT_OFF not in kinds  # the name may still call, by its first certificate


def certificate_in_kit(config: SecureGrpcConfig) -> Path:
    return config.certificates / "kits" / "silo-1" / "certs" / "silo-1.pem"


def test_a_silo_goes_on_with_a_new_certificate_when_the_old_one_is_revoked(
    start: Starter, own: SecureGrpcConfig
) -> None:
    server, silo = start(0, own), start(1, own)
    old = read_certificate(own.certificates / "silo-1.pem").fingerprint
    renew(own.certificates, "silo-1")
    add_members(members_of(own), [read_certificate(own.certificates / "silo-1.pem")])
    revoke_members(members_of(own), old)
    assert silo.next().get_type() == 0  # connected again
    passes(server, silo, 1)
    assert server.nothing_else()  # no word of a cut
    assert silo.failures.empty()
    server.stop()
    seen = read_last_seen(members_of(own))
    assert old in seen
    assert read_certificate(own.certificates / "silo-1.pem").fingerprint in seen


@pytest.mark.nightly
def test_a_broken_list_changes_nothing_and_is_said(
    start: Starter, own: SecureGrpcConfig, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server, silo, file = start(0, own, clock=clock), start(1, own), members_of(own)
    good = file.read_bytes()
    for content in (b"", b'{"members": []', b" " * (9 << 20), None):
        caplog.clear()
        if content is None:
            file.unlink()
        else:
            put_in_place(file, content)  # a look that still goes on must not see half of it
        for _ in range(3):
            let_look(server, clock)
            passes(server, silo, 1)
        assert caplog.text.count("the one before still counts") == 1
    put_in_place(file, good)
    revoke_members(file, "silo-1")
    clock.now += 2 * LOOK_SECONDS
    assert server.next().get_type() == CUT_OFF


def put_in_place(file: Path, content: bytes) -> None:
    written = file.with_name("written")
    written.write_bytes(content)
    written.replace(file)


@pytest.mark.long
def test_a_pipe_in_the_place_of_the_list_keeps_nobody_waiting(
    start: Starter, own: SecureGrpcConfig, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server, silo, file = start(0, own, clock=clock), start(1, own), members_of(own)
    file.unlink()
    os.mkfifo(file)
    let_look(server, clock)
    passes(server, silo, 1)
    assert "it is no plain file" in caplog.text


@pytest.mark.long
def test_a_disk_that_hangs_keeps_nobody_waiting(
    start: Starter, own: SecureGrpcConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, silo, file = start(0, own, clock=clock), start(1, own), members_of(own)
    hangs, goes_on = threading.Event(), threading.Event()

    def read(_file: Path) -> Membership:
        hangs.set()
        goes_on.wait()
        raise ConfigError("it is gone")

    monkeypatch.setattr("fedml_dapper.operations.membership.read_membership", read)
    file.write_bytes(file.read_bytes() + b"\n")
    clock.now += 2 * LOOK_SECONDS
    try:
        assert hangs.wait(SECONDS)
        passes(server, silo, 1)
    finally:
        goes_on.set()


def test_a_server_does_not_start_without_the_list_that_it_is_to_read(start: Starter, own: SecureGrpcConfig) -> None:
    members_of(own).unlink()
    with pytest.raises(ConfigError, match="fedml-dapper silos add"):
        start(0, own)
    members_of(own).write_text("{")
    with pytest.raises(ConfigError, match="not a list of members"):
        start(0, own)


def test_a_certificate_that_expires_is_out_though_its_connection_stands(
    start: Starter, own: SecureGrpcConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, silo = start(0, own.model_copy(update={"members_file": None})), start(1, own)
    passes(server, silo, 1)
    certificate = type(read_certificate(own.certificates / "silo-1.pem"))
    monkeypatch.setattr(certificate, "is_expired", property(lambda one: one.name == "silo-1"))
    failure = silo.failures.get(timeout=60)
    assert "of silo-1 has expired on" in str(failure)


def test_a_new_authority_comes_beside_the_old_one_and_takes_its_place(
    start: Starter, own: SecureGrpcConfig, tmp_path: Path
) -> None:
    theirs = {rank: shutil.copytree(own.certificates, tmp_path / f"of-{rank}") for rank in (0, 1, 2)}
    at = {
        rank: own.model_copy(update={"certificates": folder, "members_file": None}) for rank, folder in theirs.items()
    }
    server, one, two = start(0, at[0]), start(1, at[1]), start(2, at[2])
    new = make_certificates(tmp_path / "new", 2)
    both = (own.certificates / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()
    for folder in theirs.values():
        (folder / "ca.pem").write_bytes(both)
    for rank, name in ((0, "server"), (1, "silo-1")):
        for kind in ("key", "pem"):
            shutil.copy(new / f"{name}.{kind}", theirs[rank])
    by_new = RawSilo(at[1], read_credentials(at[1], 1), options=OWN_CONNECTION)
    wait_until(lambda: code_of(by_new) is None)  # the server has looked
    assert server.next().get_sender_id() == 1
    for rank, silo in ((1, one), (2, two)):  # the first by the new authority, the second still by the old one
        passes(server, silo, rank)
    (theirs[0] / "ca.pem").write_bytes((new / "ca.pem").read_bytes())
    old = read_credentials(at[2], 2)
    wait_until(lambda: code_of(RawSilo(at[2], old, options=OWN_CONNECTION), 2) is grpc.StatusCode.UNAVAILABLE)
    server.rest()  # what still came by the old one
    renewed = at[1].model_copy()
    fresh = RawSilo(renewed, read_credentials(renewed, 1), options=OWN_CONNECTION)
    assert code_of(fresh) is None
    assert server.next().get_sender_id() == 1
    passes(server, one, 1)


def test_a_new_token_takes_the_place_of_the_old_one(start: Starter, own: SecureGrpcConfig, tmp_path: Path) -> None:
    old, new = "the-old-token-of-many", "the-new-token-of-many"
    files = {rank: tmp_path / f"token-{rank}" for rank in (0, 1, 2)}
    for file in files.values():
        file.write_text(old)
    server, one, two = (start(rank, own.model_copy(update={"token_file": file})) for rank, file in files.items())
    files[0].write_text(f"{new}\n{old}\n")
    shows_new = RawSilo(own, read_credentials(own, 2), new)
    wait_until(lambda: code_of(shows_new, 2) is None)
    assert server.next().get_sender_id() == 2
    files[1].write_text(new)
    passes(server, one, 1)
    passes(server, two, 2)
    files[0].write_text(new)
    failure = two.failures.get(timeout=60)  # its open call was cut
    assert "silo-2 shows another token" in str(failure)
    passes(server, one, 1)
    assert code_of(RawSilo(own, read_credentials(own, 2), old), 2) is grpc.StatusCode.UNAUTHENTICATED


def test_messages_pass_while_connections_grow_old(
    start: Starter, own: SecureGrpcConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [option for option in server_module.SERVER_OPTIONS if option[0] != "grpc.max_connection_age_ms"]
    assert len(options) < len(server_module.SERVER_OPTIONS)
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", (*options, ("grpc.max_connection_age_ms", 300)))
    monkeypatch.setattr(link, "CALLS_AT_ONCE", float("inf"))
    audit = tmp_path / "audit.jsonl"
    server, silo = start(0, own.model_copy(update={"audit_file": audit})), start(1, own)

    def has_grown_old_thrice() -> bool:
        passes(server, silo, 1)
        return audit.read_text().count('"event":"connected"') > 3

    wait_until(has_grown_old_thrice)
    assert silo.failures.empty()
    assert server.nothing_else(silo)  # it did not think that it had lost the server


def test_the_audit_log_tells_who_came_was_refused_and_was_cut_off(
    start: Starter, own: SecureGrpcConfig, tmp_path: Path
) -> None:
    own = own.model_copy(update={"audit_file": tmp_path / "audit.jsonl"})
    server, silo = start(0, own), start(1, own)
    for _ in range(3):
        passes(server, silo, 1)
    silo.transport._acknowledged.wait()  # its next call is open
    assert code_of(RawSilo(own, read_credentials(own, 3)), 3) is grpc.StatusCode.PERMISSION_DENIED
    revoke_members(members_of(own), "silo-1", "left\nfor good")
    assert server.next().get_type() == CUT_OFF
    server.stop()
    entries = list(entries_of(tmp_path / "audit.jsonl"))
    events = [(entry.event, entry.who) for entry in entries]
    assert events[:4] == [
        ("started", "server"), ("connected", "silo-1"), ("refused", "stranger"), ("member_revoked", "server")
    ]  # fmt: skip
    assert {("call_ended", "server"), ("cut_off", "server")} <= set(events[4:])
    fingerprint = read_certificate(own.certificates / "silo-1.pem").fingerprint
    assert entries[1].detail["fingerprint"] == entries[3].detail["fingerprint"] == fingerprint
    assert entries[3].detail["reason"] == "left?for good"
    assert "`silo-3` is no silo's" in str(entries[2].detail["reason"])
