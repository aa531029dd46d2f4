"""Calls of devices over real gRPC: who may call, what is refused, and in which words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, DapperError, ProtocolError
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.certificate import certificate_of
from fedml_dapper.operations.credentials import CredentialFiles, read_admin_credentials, read_credentials
from fedml_dapper.operations.last_seen import read_last_seen
from fedml_dapper.operations.membership import add_members, revoke_members
from fedml_dapper.operations.orders import Order, give_order
from fedml_dapper.operations.status import ServerStatus, StatusBoard
from fedml_dapper.secure_grpc import Message, calls, patience
from fedml_dapper.secure_grpc.device_admission import CALLS_AT_ONCE
from fedml_dapper.secure_grpc.endpoint import CALL, SERVICE
from fedml_dapper.secure_grpc.parcel import Numbering
from fedml_dapper.secure_grpc.silo import open_channel

from ..waiting import wait_until
from .answering import MAX_MB, Answering, caller, made, saying

SECONDS = 300.0
"""How long a call may take: no promise, only the end of waiting."""


def test_a_call_is_answered_with_payloads_of_several_frames(
    config: SecureGrpcConfig, serve: Callable[..., Answering]
) -> None:
    server = serve(config)
    payload = bytes(range(256)) * 6000  # 1.5 MB
    answer = caller(config, 1).call(saying("hello", 1, payload))
    assert answer.get("said") == "HELLO"
    assert answer.get(say.MODEL) == payload[::-1]
    assert [rank for rank, _ in server.heard] == [1]


def test_whoever_may_not_call_is_told_in_one_line(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    server = serve(config)
    refusals = {
        "the certificate of `silo-3` is no device's of this federation of 2": lambda: caller(config, 3).call(
            saying("I am the third", 3)
        ),
        "device 1 sent a message from 2 to 0": lambda: caller(config, 1).call(saying("I am another", 2)),
        "nobody says that": lambda: caller(config, 1).call(Message("nonsense", 1, 0)),
    }
    for words, call in refusals.items():
        with pytest.raises(DapperError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(ProtocolError, match="a message of 5 MiB"):
        caller(config, 1).call(saying("much", 1, bytes(5 << 20)))
    foreign = config.model_copy(update={"certificates": made(tmp_path / "foreign")})
    with pytest.raises((ConfigError, grpc.RpcError)):
        caller(foreign, 1).call(saying("I am the first", 1))
    assert server.heard == []


def test_a_device_that_is_struck_off_the_list_is_refused_while_the_server_runs(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    members = tmp_path / "members.json"
    shown = [certificate_of((config.certificates / f"silo-{rank}.pem").read_bytes()) for rank in (1, 2)]
    add_members(members, shown)
    listed = config.model_copy(update={"members_file": members, "audit_file": tmp_path / "audit.jsonl"})
    serve(listed)
    assert caller(config, 2).call(saying("hello", 2)).get("said") == "HELLO"
    revoke_members(members, "silo-2", "lost")

    refusals: list[str] = []

    def is_refused() -> bool:
        try:
            caller(config, 2).call(saying("hello", 2))
        except ConfigError as error:
            refusals.append(str(error))
        return bool(refusals)

    wait_until(is_refused)
    assert "of silo-2 " in refusals[0]
    assert "silo-2" in (tmp_path / "audit.jsonl").read_text()
    assert caller(config, 1).call(saying("hello", 1)).get("said") == "HELLO"


def test_a_device_that_is_struck_off_while_it_delivers_is_not_heard(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    members = tmp_path / "members.json"
    add_members(members, [certificate_of((config.certificates / "silo-1.pem").read_bytes())])
    listed = config.model_copy(update={"members_file": members})
    server = serve(listed)
    is_struck_off = threading.Event()

    def halting() -> Iterator[bytes]:
        frames = Numbering(MAX_MB << 20).parcel(saying("late", 1, bytes(1000))).frames()
        yield next(frames)
        is_struck_off.wait(60)
        yield from frames

    with open_channel(config, CredentialFiles(config, 1).current) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{CALL}")(halting(), timeout=50)
        wait_until(lambda: server.server._under_way[1] == 1)
        revoke_members(members, "silo-1", "lost")
        wait_until(lambda: server.cut_off == [1])
        is_struck_off.set()
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert server.heard == []


def test_a_flood_of_calls_is_slowed_and_others_are_answered(
    config: SecureGrpcConfig, serve: Callable[..., Answering]
) -> None:
    serve(config)
    flooding = caller(config, 1)

    def flood() -> None:
        for _ in range(int(CALLS_AT_ONCE) + 200):
            flooding.call(saying("hello", 1))

    with pytest.raises(grpc.RpcError) as caught:
        flood()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caller(config, 2).call(saying("hello", 2)).get("said") == "HELLO"


def test_a_delivery_that_trickles_is_cut_off(
    config: SecureGrpcConfig, serve: Callable[..., Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SLOWEST_SECONDS", 0.2)
    monkeypatch.setattr(patience, "SLOWEST_BYTES_PER_SECOND", 1e9)
    server = serve(config)
    never = threading.Event()

    def trickling() -> Iterator[bytes]:
        frames = Numbering(MAX_MB << 20).parcel(saying("slow", 1, bytes(1000))).frames()
        yield next(frames)
        never.wait(60)
        yield from frames

    with open_channel(config, CredentialFiles(config, 1).current) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream(f"/{SERVICE}/{CALL}")(trickling(), timeout=50))
        never.set()
    assert "delivers more slowly" in str(caught.value.details())
    assert server.heard == []


def test_a_device_that_stops_in_the_middle_of_many_deliveries_keeps_nobody_else_waiting(
    config: SecureGrpcConfig, serve: Callable[..., Answering]
) -> None:
    serve(config)
    never = threading.Event()
    refused = threading.Event()

    def stopping() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    def note(call: grpc.Future) -> None:
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            refused.set()

    with open_channel(config, CredentialFiles(config, 1).current) as channel:
        held = [
            channel.stream_stream(f"/{SERVICE}/{CALL}")(stopping(), timeout=SECONDS)
            for _ in range(calls.CALLS_OF_A_DEVICE + 1)
        ]
        for call in held:
            call.add_done_callback(note)
        assert refused.wait(30)
        assert not all(call.done() for call in held)
        assert caller(config, 2).call(saying("hello", 2)).get("said") == "HELLO"
        with pytest.raises(grpc.RpcError, match="silo-1 has 4 calls under way already"):
            caller(config, 1).call(saying("one more", 1))
        for call in held:
            call.cancel()
        never.set()
    wait_until(lambda: _is_answered(config))


def _is_answered(config: SecureGrpcConfig) -> bool:
    try:
        return caller(config, 1).call(saying("hello", 1)).get("said") == "HELLO"
    except grpc.RpcError:
        return False


def test_a_call_without_payload_waits_for_no_upload(
    config: SecureGrpcConfig, serve: Callable[..., Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PAYLOADS_AT_ONCE", 0)
    serve(config)
    assert caller(config, 2).call(saying("hello", 2)).get("said") == "HELLO"


def test_a_call_that_says_nothing_is_ended(
    config: SecureGrpcConfig, serve: Callable[..., Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SLOWEST_SECONDS", 0.2)
    serve(config)
    never = threading.Event()

    def silent() -> Iterator[bytes]:
        never.wait(60)
        yield from ()

    with open_channel(config, CredentialFiles(config, 1).current) as channel:
        with pytest.raises(grpc.RpcError, match="device 1 delivers more slowly"):
            next(channel.stream_stream(f"/{SERVICE}/{CALL}")(silent(), timeout=SECONDS))
        never.set()


class Paused:
    """A desk that carries out all orders but to pause."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def status(self) -> ServerStatus:
        return StatusBoard().read()

    def ask(self, order: Order) -> Future[str]:
        self.orders.append(order.act)
        future: Future[str] = Future()
        if order.act == "pause":
            future.set_exception(ConfigError("the run is paused already"))
        else:
            future.set_result(f"{order.act}: done")
        return future


def test_orders_come_over_the_network_with_the_certificate_of_an_admin_alone(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    desk = Paused()
    config = config.model_copy(update={"audit_file": tmp_path / "audit.jsonl"})
    serve(config, desk=desk)
    admin = read_admin_credentials(config)
    assert give_order(config.server_address, admin, Order(act="resume")).said == "resume: done"
    with pytest.raises(DapperError, match="the run is paused already"):
        give_order(config.server_address, admin, Order(act="pause"))
    assert give_order(config.server_address, admin, Order(act="status")).status.state == "waiting"
    with pytest.raises(DapperError, match="orders are for the certificate of `admin` alone; this is that of `silo-1`"):
        give_order(config.server_address, read_credentials(config, 1), Order(act="resume"))
    assert desk.orders == ["resume", "pause"]
    events = [json.loads(line)["event"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "started"] == ["order", "order_refused", "refused", "refused"]


def begun(config: SecureGrpcConfig, rank: int, frames: Iterator[bytes], timeout: float | None = SECONDS) -> Any:
    """A call of a device that says these frames, over a connection that gRPC reads no further ahead than it is read."""
    even = config.model_copy(update={"max_kib_per_s": 1})
    channel = open_channel(even, CredentialFiles(config, rank).current)
    return channel.stream_stream(f"/{SERVICE}/{CALL}")(frames, timeout=timeout)


def stopping_upload(rank: int, size: int, until: threading.Event) -> Iterator[bytes]:
    """The envelope of an upload of which nothing comes."""
    yield next(Numbering(MAX_MB << 20).parcel(saying("slow", rank, bytes(size))).frames())
    until.wait(SECONDS)


def events_in(file: Path) -> list[tuple[str, str]]:
    return [(entry.event, entry.who) for entry in entries_of(file)]


def test_a_device_that_is_struck_off_while_it_is_sent_a_model_is_sent_no_more(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    members, audit = tmp_path / "members.json", tmp_path / "audit.jsonl"
    add_members(members, [certificate_of((config.certificates / f"silo-{rank}.pem").read_bytes()) for rank in (1, 2)])
    listed = config.model_copy(update={"members_file": members, "audit_file": audit, "max_message_mb": 32})
    server = serve(listed)
    server.says = bytes(32 << 20)
    call = begun(listed, 1, Numbering(MAX_MB << 20).parcel(saying("hello", 1)).frames())
    received = len(next(call))
    revoke_members(members, "silo-1", "stolen")
    wait_until(lambda: server.cut_off == [1])

    def read_on() -> None:
        nonlocal received
        for frame in call:
            received += len(frame)

    with pytest.raises(grpc.RpcError, match="was revoked on") as caught:
        read_on()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert received < len(server.says)
    assert caller(listed, 2).call(saying("hello", 2)).get("said") == "HELLO"
    wait_until(lambda: len(events_in(audit)) == 7)
    assert set(events_in(audit)) == {
        ("started", "server"), ("connected", "silo-1"), ("connected", "silo-2"), ("refused", "silo-1"),
        ("member_revoked", "server"), ("call_ended", "server"), ("cut_off", "server"),
    }  # fmt: skip
    [refusal] = [entry for entry in entries_of(audit) if entry.event == "refused"]
    assert str(refusal.detail["peer"]).startswith("ipv")
    server.stop()
    assert len(read_last_seen(members)) == 2


def test_who_calls_again_from_the_same_host_gets_no_other_entry(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    serve(config.model_copy(update={"audit_file": audit}))
    for _ in range(3):
        caller(config, 1).call(saying("hello", 1))
    assert events_in(audit) == [("started", "server"), ("connected", "silo-1")]


def test_an_upload_that_nobody_awaits_is_answered_unread(
    config: SecureGrpcConfig, serve: Callable[..., Answering]
) -> None:
    server = serve(config, not_awaited=lambda rank: None if rank == 2 else "it comes too late")
    never = threading.Event()
    frames = list(begun(config, 1, stopping_upload(1, 4 << 20, never)))
    assert b"SLOW" in frames[0]
    assert caller(config, 1).call(saying("whole", 1, bytes(1 << 20))).get("said") == "WHOLE"
    assert caller(config, 2).call(saying("in time", 2, b"all of it")).get("said") == "IN TIME"
    assert [message.get(say.MODEL) for _, message in server.heard] == [b"", b"", b"all of it"]
    never.set()


def test_a_device_brings_one_upload_at_a_time_and_the_newest_counts(
    config: SecureGrpcConfig, serve: Callable[..., Answering]
) -> None:
    server = serve(config)
    never = threading.Event()
    older = begun(config, 1, stopping_upload(1, 1000, never))
    wait_until(lambda: 1 in server.server._arriving)
    caller(config, 1).call(saying("still here", 1))  # which is no upload
    assert not older.done()
    assert caller(config, 1).call(saying("newer", 1, bytes(1000))).get("said") == "NEWER"
    with pytest.raises(grpc.RpcError, match="a newer call of this device has taken the place of this one"):
        list(older)
    never.set()
    assert server.server._arriving == {}


def test_a_call_without_a_deadline_is_refused(config: SecureGrpcConfig, serve: Callable[..., Answering]) -> None:
    serve(config)
    frames = Numbering(MAX_MB << 20).parcel(saying("hello", 1)).frames()
    with pytest.raises(grpc.RpcError, match="silo-1 calls without a deadline that is near enough"):
        list(begun(config, 1, frames, timeout=None))


def test_a_device_that_does_not_read_its_answer_is_sent_no_more(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "seconds_for", lambda size: 0.2)
    audit = tmp_path / "audit.jsonl"
    server = serve(config.model_copy(update={"audit_file": audit, "max_message_mb": 32}))
    server.says = bytes(32 << 20)
    call = begun(config, 1, Numbering(MAX_MB << 20).parcel(saying("hello", 1)).frames())

    def read_later() -> None:
        for _ in call:
            wait_until(lambda: ("refused", "silo-1") in events_in(audit))

    with pytest.raises(grpc.RpcError, match="device 1 reads more slowly than 4 kB a second"):
        read_later()
