"""Large messages of silos and server over a line that breaks go on where it broke, also after a restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles, read_credentials
from fedml_dapper.secure_grpc import SecureServer, SecureSilo
from fedml_dapper.secure_grpc import silo as silo_module
from fedml_dapper.secure_grpc.endpoint import OFFER, SERVICE
from fedml_dapper.secure_grpc.going_on import Offer
from fedml_dapper.secure_grpc.parcel import MIB
from fedml_dapper.secure_grpc.silo import open_channel

from ...line import Line, Quality
from ...waiting import wait_until
from .conftest import MAX_MESSAGE_MB, NUM_SILOS, READY, Running, Starter
from .manager import Manager
from .raw_silo import MODEL, SECONDS, STATUS, UPLOAD, RawSilo, parcel, refused
from .test_transport import message

LARGE = 3 * MIB + 5
BREAKS_AFTER = MIB + 100_000
MOST_TRIES = 30

Keeper = Callable[..., Running]


@pytest.fixture
def keeping(config: SecureGrpcConfig, tmp_path: Path) -> Iterator[Keeper]:
    """``keeping(rank)``: that process's transport, which keeps parts in a folder of the test."""
    running: list[Running] = []

    def begin(rank: int, settings: SecureGrpcConfig = config) -> Running:
        credentials = CredentialFiles(settings, rank)
        folder = tmp_path / f"parts-{rank}"
        if rank == 0:
            silos = {silo: settings.name_of(silo) for silo in range(1, NUM_SILOS + 1)}
            transport = SecureServer(settings, credentials, silos, AuditLog(None), Manager(), folder=folder)
        else:
            transport = SecureSilo(settings, credentials, rank, SECONDS, folder=folder)
        running.append(Running(transport))
        return running[-1]

    yield begin
    for one in reversed(running):
        one.stop()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_module, "FIRST_PAUSE_SECONDS", 0.05)


def through(line: Line, config: SecureGrpcConfig) -> SecureGrpcConfig:
    return config.model_copy(update={"server_address": f"localhost:{line.port}"})


def line_to(config: SecureGrpcConfig, quality: Quality) -> Line:
    return Line(int(config.server_address.rpartition(":")[2]), quality=quality)


def test_an_upload_goes_on_after_each_break_and_a_restart_of_the_server(
    config: SecureGrpcConfig, keeping: Keeper
) -> None:
    server = keeping(0)
    payload = os.urandom(LARGE)
    upload = message(UPLOAD, 1, 0, model_params=payload)
    with line_to(config, Quality(cut_after=BREAKS_AFTER)) as line:
        silo = SecureSilo(through(line, config), CredentialFiles(config, 1), 1, SECONDS)
        broken = 0
        while not _is_delivered(silo, upload):
            broken += 1
            assert broken < MOST_TRIES
            if broken == 1:
                server.stop()
                server = keeping(0)
        assert broken >= 2
        assert line.up < 3 * LARGE + (broken + 1) * 50_000
        silo.stop_receive_message()
    assert server.next().get_type() == READY
    assert server.next().get("model_params") == payload


def _is_delivered(silo: SecureSilo, upload: object) -> bool:
    try:
        silo.send_message(upload)  # type: ignore[arg-type]
    except grpc.RpcError:
        return False
    return True


def test_a_model_goes_on_after_each_break_and_a_restart_of_the_silo(config: SecureGrpcConfig, keeping: Keeper) -> None:
    server = keeping(0)
    assert server.next().get_type() == READY
    payload = os.urandom(LARGE)
    with line_to(config, Quality(cut_after=BREAKS_AFTER)) as line:
        first = keeping(1, through(line, config))
        assert first.next().get_type() == READY
        server.transport.send_message(message(MODEL, 0, 1, model_params=payload))
        wait_until(lambda: line.connections >= 2)
        first.stop()
        second = keeping(1, through(line, config))
        told = next(found for found in iter(second.next, None) if found.get_type() != READY)
        assert told.get("model_params") == payload
        assert line.down < 3 * LARGE + (line.connections + 1) * 50_000


def test_parts_are_deleted_when_their_round_is_over(keeping: Keeper, config: SecureGrpcConfig, tmp_path: Path) -> None:
    server = keeping(0)
    silo = keeping(1)
    silo.transport.send_message(message(UPLOAD, 1, 0, model_params=bytes(LARGE)))
    assert [server.next().get_type() for _ in range(2)] == [READY, UPLOAD]
    assert len(list((tmp_path / "parts-0").iterdir())) == 1
    server.transport.forget_finished_rounds([1])
    assert len(list((tmp_path / "parts-0").iterdir())) == 1  # it is at work still
    server.transport.forget_finished_rounds()
    assert not (tmp_path / "parts-0").exists()


def test_what_is_too_large_or_no_offer_is_one_line(start: Starter, config: SecureGrpcConfig) -> None:
    start(0)
    with open_channel(config, read_credentials(config, 1)) as channel:
        call = channel.stream_unary(f"/{SERVICE}/{OFFER}")
        hundred = Offer(digest="0" * 64, size=100 << 30).model_dump_json().encode()
        status, reason = refused(lambda: call(iter([hundred]), timeout=SECONDS))
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert reason == f"a message of 102400 MiB; comm_args.dapper_grpc.max_message_mb allows {MAX_MESSAGE_MB}"
        assert refused(lambda: call(iter([b"{}"]), timeout=SECONDS))[1] == "malformed offer of a payload"


def test_a_silo_without_a_folder_goes_on_in_memory_and_an_edge_without_one_takes_all_whole(
    start: Starter, config: SecureGrpcConfig
) -> None:
    server = start(0)
    payload = os.urandom(LARGE)
    with line_to(config, Quality(cut_after=BREAKS_AFTER)) as line:
        silo = start(1, through(line, config))
        server.transport.send_message(message(MODEL, 0, 1, model_params=payload))
        told = next(found for found in iter(silo.next, None) if found.get_type() != READY)
        assert told.get("model_params") == payload
        assert line.connections >= 3
        whole, held = silo.transport._parts.latest(0)
        assert (whole.size, held) == (LARGE, 0)  # what is whole takes no more memory
    start(2).transport.send_message(message(UPLOAD, 2, 0, model_params=payload))
    assert server.next().get("model_params") == payload


def test_a_wrong_digest_and_a_gap_are_refused_and_nobody_hears_of_them(
    keeping: Keeper, config: SecureGrpcConfig
) -> None:
    server = keeping(0)
    assert server.next().get_type() == READY
    payload = os.urandom(2 * MIB)
    whole = parcel(payload, digest="1" * 64)
    peer = RawSilo(config, read_credentials(config, 1))
    status, reason = refused(lambda: peer.deliver(whole.frames()))
    assert (status, "not those of the digest" in reason) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    status, reason = refused(lambda: peer.deliver(parcel(payload, digest="1" * 64, begins_at=5).frames()))
    assert (status, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "parts from byte 5 on, where 0 are there")
    for changes, words in (
        ({"begins_at": 5}, "begins behind its payload's end"),
        ({"digest": "1" * 64, "begins_at": 2 * MIB + 1}, "begins behind its payload's end"),
    ):
        assert words in refused(lambda changes=changes: peer.deliver(parcel(payload, **changes).frames()))[1]
    assert "a digest of no payload" in refused(lambda: peer.deliver(parcel(digest="1" * 64).frames()))[1]
    peer.deliver(parcel(kind=STATUS).frames())
    assert [one.get_type() for one in server.rest()] == [STATUS]
