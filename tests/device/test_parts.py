"""Large models and uploads over lines that break: they go on where they broke, also after a restart of either side."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings, load_settings
from fedml_dapper.device.calling import FIRST_PAUSE_SECONDS, CallingDevice
from fedml_dapper.device.keeping import ANSWER_NAME, KEPT_MODEL_NAME, MEMORY_NAME, NothingKept
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import Agreement, ClientSide, Codec, build_experiment, simulate
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.secure_grpc import PARTS_NAME, AnyMessage, Caller, NotAwaitedError, PartsError
from fedml_dapper.secure_grpc.endpoint import CALL, OFFER, SERVICE
from fedml_dapper.secure_grpc.going_on import Offer
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES, MIB, PART_BYTES, WHOLE_BYTES, Envelope, Parcel
from fedml_dapper.secure_grpc.parts import PartFolder, Whole
from fedml_dapper.secure_grpc.silo import open_channel

from ..line import Line, Quality
from ..platform.processes import Silos
from ..waiting import wait_until
from .answering import MAX_MB, Answering, caller, saying
from .conftest import NUM_DEVICES, Devices

LARGE = 3 * MIB + 5
BREAKS_AFTER = MIB + 100_000
"""Bytes that a connection of the bad line carries: a third of a large payload."""
MOST_TRIES = 30


def through(line: Line, config: SecureGrpcConfig) -> SecureGrpcConfig:
    return config.model_copy(update={"server_address": f"localhost:{line.port}"})


def port_of(config: SecureGrpcConfig) -> int:
    return int(config.server_address.rpartition(":")[2])


def called_until_answered(
    call: Callable[[AnyMessage], AnyMessage], message: AnyMessage, after_each: Callable[[], object] = lambda: None
) -> tuple[AnyMessage, int]:
    """The answer, and after how many calls that broke off it came."""
    for broken in range(MOST_TRIES):
        try:
            return call(message), broken
        except (grpc.RpcError, PartsError):
            after_each()
    raise AssertionError(f"{MOST_TRIES} calls broke off")


# Lines that break


def test_an_upload_goes_on_where_the_line_broke_also_after_a_restart_of_the_server(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    servers = [serve(config, tmp_path / "parts")]

    def start_again() -> None:
        servers[-1].stop()
        servers.append(serve(config, tmp_path / "parts"))

    payload = os.urandom(LARGE)
    message = saying("up", 1, payload)
    with Line(port_of(config), quality=Quality(cut_after=BREAKS_AFTER)) as line:
        answer, broken = called_until_answered(caller(through(line, config), 1).call, message, start_again)
        assert answer.get("said") == "UP"
        assert broken >= 2
        assert line.up < 3 * LARGE + (broken + 1) * 50_000  # where it would never end otherwise
    [(rank, heard)] = servers[-1].heard
    assert (rank, heard.get(say.MODEL)) == (1, payload)


def test_a_download_goes_on_where_the_line_broke_also_after_a_restart_of_the_device(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    server = serve(config)
    payload = os.urandom(LARGE)
    server.says = payload
    with Line(port_of(config), quality=Quality(cut_after=BREAKS_AFTER)) as line:

        def by_a_new_process(message: AnyMessage) -> AnyMessage:
            return caller(through(line, config), 1, tmp_path / "parts").call(message)

        answer, broken = called_until_answered(by_a_new_process, saying("down", 1))
        assert answer.get(say.MODEL) == payload
        assert broken >= 2
        carried = line.down
        again = by_a_new_process(saying("once more", 1))  # as a device does that was switched off while it trained
        assert again.get(say.MODEL) == payload
        assert line.down - carried < 50_000
    server.says = payload[::-1]
    assert caller(config, 1, tmp_path / "parts").call(saying("the next round", 1)).get(say.MODEL) == payload[::-1]
    [kept] = (tmp_path / "parts").iterdir()
    assert hashlib.sha256(payload[::-1]).hexdigest() in kept.name  # the newest alone


def test_small_messages_and_those_of_older_versions_travel_as_before(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(config, tmp_path / "parts")
    small = bytes(WHOLE_BYTES)
    assert caller(config, 1).call(saying("small", 1, small)).get(say.MODEL) == small
    server.says = os.urandom(LARGE)
    with open_channel(config, CredentialFiles(config, 1).current) as channel:  # a device that knows of no parts
        [envelope, *frames] = channel.stream_stream(f"/{SERVICE}/{CALL}")(upload(b"").frames(), timeout=60)
    assert b"digest" not in envelope
    assert [len(frame) for frame in frames] == [FRAME_BYTES] * 3 + [5]
    monkeypatch.setattr("fedml_dapper.secure_grpc.caller.OFFER", "NoSuchCall")  # as a server answers that has none
    assert caller(config, 1).call(saying("large", 1, bytes(LARGE))).get("said") == "LARGE"
    assert not (tmp_path / "parts").exists()


def test_a_slow_line_with_delays_brings_all(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    serve(config, tmp_path / "parts")
    payload = os.urandom(WHOLE_BYTES + 1)
    with Line(port_of(config), quality=Quality(delay_s=0.001, bytes_per_s=8e6)) as line:
        assert caller(through(line, config), 1).call(saying("slow", 1, payload)).get(say.MODEL) == payload[::-1]


# Attackers and accidents


def offered(config: SecureGrpcConfig, rank: int, digest: str, size: int) -> bytes:
    with open_channel(config, CredentialFiles(config, rank).current) as channel:
        request = Offer.model_construct(digest=digest, size=size).model_dump_json().encode()
        return channel.stream_unary(f"/{SERVICE}/{OFFER}")(iter([request]), timeout=60)  # type: ignore[no-any-return]


def brought(config: SecureGrpcConfig, rank: int, parcel: Parcel, begins_at: int = 0, count: int = 100) -> None:
    """Bring an upload in parts, of which only so many frames come, the envelope included."""
    frames = list(parcel.frames_from(begins_at))[:count]
    with open_channel(config, CredentialFiles(config, rank).current) as channel:
        for _ in channel.stream_stream(f"/{SERVICE}/{CALL}")(iter(frames), timeout=60):
            pass


def upload(payload: bytes, rank: int = 1) -> Parcel:
    fields = {"session": "0" * 32, "counter": 1, "kind": 3, "sender": rank, "receiver": 0}
    key = say.MODEL if payload else None
    return Parcel(Envelope(**fields, payload_key=key, payload_bytes=len(payload)), payload)


def refused(attempt: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        attempt()
    return caught.value.code(), caught.value.details()


def test_a_hundred_gigabytes_that_are_announced_are_refused_in_one_line(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    serve(config, tmp_path / "parts")
    status, reason = refused(lambda: offered(config, 1, "0" * 64, 100 << 30))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert reason == f"a message of 102400 MiB; comm_args.dapper_grpc.max_message_mb allows {MAX_MB}"
    huge = upload(b"abc").envelope.model_copy(update={"payload_bytes": 100 << 30})
    assert refused(lambda: brought(config, 1, Parcel(huge, b"abc")))[1] == reason
    assert refused(lambda: offered(config, 1, "no digest", 5))[1] == "malformed offer of a payload"
    assert not (tmp_path / "parts").exists()


def test_uploads_that_begin_and_never_end_leave_one_file_a_device_within_the_room(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    tight = config.model_copy(update={"max_parts_mb": 5})
    server = serve(tight, tmp_path / "parts")
    for seed in range(3):
        unfinished = upload(bytes([seed]) * 2 * MIB)
        offered(config, 1, unfinished.digest, len(unfinished.payload))
        status, reason = refused(lambda unfinished=unfinished: brought(config, 1, unfinished, count=3))
        assert (status, "ended after" in reason) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert [path.stat().st_size for path in (tmp_path / "parts").iterdir()] == [3 * PART_BYTES]  # 1 and 2
    payload = os.urandom(4 * MIB)  # for which there is room without the other device's
    assert caller(config, 2).call(saying("honest", 2, payload)).get(say.MODEL) == payload[::-1]
    assert [path.name[:2] for path in (tmp_path / "parts").iterdir()] == ["2-"]
    server.server.forget_parts()  # the round is over
    assert not (tmp_path / "parts").exists()


def test_without_room_an_upload_travels_whole(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    none = config.model_copy(update={"max_parts_mb": 0})
    serve(none, tmp_path / "parts")
    assert offered(config, 1, "0" * 64, MIB) == b"{}"
    assert caller(config, 1).call(saying("whole", 1, bytes(LARGE))).get("said") == "WHOLE"
    assert not (tmp_path / "parts").exists()


def test_no_device_adds_to_another_s_upload(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    server = serve(config, tmp_path / "parts")
    mine = upload(os.urandom(2 * MIB))
    offered(config, 1, mine.digest, 2 * MIB)
    refused(lambda: brought(config, 1, mine, count=3))
    forged = upload(bytes(2 * MIB), rank=2)
    forged.__dict__["digest"] = mine.digest  # who knows what the other one announced
    assert offered(config, 2, mine.digest, 2 * MIB) == b'{"held":0}'
    status, reason = refused(lambda: brought(config, 2, forged))
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert reason == f"{2 * MIB} bytes have come that are not those of the digest announced; they are forgotten"
    speaking = Parcel(mine.envelope, mine.payload)
    assert "device 2 sent a message from 1 to 0" in refused(lambda: brought(config, 2, speaking))[1]
    assert offered(config, 1, mine.digest, 2 * MIB) == f'{{"held":{3 * PART_BYTES}}}'.encode()
    brought(config, 1, mine, begins_at=3 * PART_BYTES)
    [(rank, heard)] = server.heard
    assert (rank, heard.get(say.MODEL)) == (1, mine.payload)


def test_parts_that_do_not_go_on_where_the_others_end_are_refused(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    server = serve(config, tmp_path / "parts")
    mine = upload(os.urandom(2 * MIB))
    status, reason = refused(lambda: brought(config, 1, mine, begins_at=PART_BYTES))
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert reason == f"parts from byte {PART_BYTES} on, where 0 are there"
    assert server.heard == []


def test_an_upload_that_nobody_awaits_is_not_sent(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    serve(config, tmp_path / "parts", not_awaited=lambda rank: None if rank == 2 else "it comes too late")
    with Line(port_of(config)) as line:
        with pytest.raises(NotAwaitedError, match="it comes too late"):
            caller(through(line, config), 1).call(saying("late", 1, bytes(LARGE)))
        assert line.up < 50_000
    assert refused(lambda: brought(config, 1, upload(bytes(LARGE))))[1] == "it comes too late"
    assert caller(config, 2).call(saying("in time", 2, bytes(LARGE))).get("said") == "IN TIME"


def test_a_newer_call_takes_over_what_an_older_one_brought(tmp_path: Path) -> None:
    parts = PartFolder(tmp_path / "parts", 10 * MIB)
    payload = os.urandom(2 * PART_BYTES)
    envelope = upload(payload).envelope.model_copy(update={"digest": upload(payload).digest})
    whole = Whole(envelope.digest, len(payload))
    with parts.arriving(1, envelope) as older:
        older.add(payload[:PART_BYTES])
        assert parts.begin(1, whole) == PART_BYTES
        with pytest.raises(PartsError, match="a newer call has taken the place"):
            older.add(payload[PART_BYTES:])
        with parts.arriving(1, envelope.model_copy(update={"begins_at": PART_BYTES})) as newer:
            newer.add(payload[PART_BYTES:])
            assert newer.whole() == payload
            with pytest.raises(ProtocolError, match="a frame of 1 bytes after"):
                newer.add(b"1")


def test_what_is_being_brought_is_not_given_up_for_others(tmp_path: Path) -> None:
    parts = PartFolder(tmp_path / "parts", 3 * MIB)
    payload = os.urandom(2 * MIB)
    envelope = upload(payload).envelope.model_copy(update={"digest": upload(payload).digest})
    with parts.arriving(1, envelope) as arriving:
        arriving.add(payload[:MIB])
        assert parts.begin(2, Whole("2" * 64, 2 * MIB)) is None
        parts.forget()
        arriving.add(payload[MIB:])
        assert arriving.whole() == payload
    assert parts.begin(2, Whole("2" * 64, 2 * MIB)) == 0
    assert list((tmp_path / "parts").iterdir()) == []


def test_a_file_that_is_damaged_after_a_loss_of_power_costs_a_new_start(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    mine = upload(os.urandom(2 * MIB))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "not one of ours").touch()
    damaged = tmp_path / "parts" / f"1-{2 * MIB}-{mine.digest}"
    damaged.write_bytes(bytes(PART_BYTES))
    server = serve(config, tmp_path / "parts")
    answer, broken = called_until_answered(caller(config, 1).call, saying("again", 1, mine.payload))
    assert (answer.get("said"), broken) == ("AGAIN", 1)
    assert len(server.heard) == 1
    assert (tmp_path / "parts" / "not one of ours").exists()


def test_a_disk_that_takes_nothing_is_one_line_and_the_server_goes_on(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    (tmp_path / "parts").write_text("a file where the folder belongs")
    serve(config, tmp_path / "parts" / "below")
    status, reason = refused(lambda: caller(config, 1).call(saying("large", 1, bytes(LARGE))))
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert "cannot write" in reason
    assert "\n" not in reason
    assert caller(config, 1).call(saying("small", 1)).get("said") == "SMALL"


def test_a_caller_forgets_at_the_end_of_the_run(
    config: SecureGrpcConfig, serve: Callable[..., Answering], tmp_path: Path
) -> None:
    serve(config).says = bytes(LARGE)
    device: Caller = caller(config, 1, tmp_path / "parts")
    device.call(saying("down", 1))
    assert len(list((tmp_path / "parts").iterdir())) == 1
    device.forget()
    assert not (tmp_path / "parts").exists()


# Federations


def test_a_line_on_which_a_model_comes_part_by_part_is_called_again_soon(
    config: SecureGrpcConfig,
    serve: Callable[..., Answering],
    tiny_settings: Callable[..., Settings],
) -> None:
    server = serve(config)
    server.says = os.urandom(2 * MIB)
    experiment = build_experiment(tiny_settings("method=fedavg"))
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if server.heard and seconds > 100:  # the answer has come whole, and is none of a run's
            raise KeyboardInterrupt

    with Line(port_of(config), quality=Quality(cut_after=300_000)) as line:
        calls = caller(through(line, config), 1)
        device = CallingDevice(experiment, ClientSide(experiment), codec, 1, calls, NothingKept(), sleep)
        with pytest.raises(KeyboardInterrupt):
            device.run()
    assert len(pauses) > 5
    assert max(pauses[:-1]) < 8 * FIRST_PAUSE_SECONDS  # a break may take all with it that a connection carried


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "killed"), [("cross_device", "device"), ("cross_device", "server"), ("cross_silo", "server")]
)
def test_who_is_killed_in_an_upload_over_a_bad_line_gives_the_run_the_same_bits(
    devices: Devices, server: Callable[[], Silos], kind: str, killed: str
) -> None:
    few = {"check_in": {"over_selection": 1.0, "come_back_s": 1.0}} if kind == "cross_device" else {}
    args = {"min_clients_per_round": 3, **few}
    devices.write("scaffold", kind, model_args={"width": 20}, dapper_args=args)
    server_process = server()
    port = int(devices.grpc["server_address"].rpartition(":")[2])
    with Line(port, quality=Quality(cut_after=2 * MIB)) as line:
        bad = ("--set", f"comm_args.dapper_grpc.server_address=localhost:{line.port}")
        devices.start(1, *bad)
        for rank in range(2, NUM_DEVICES + 1):
            devices.start(rank)
        parts = server_process.run_dir / PARTS_NAME
        own = devices.folder / "runs" / "silo-1"
        wait_until((own / ANSWER_NAME).exists, otherwise=lambda: devices.output(1))
        line.quality.bytes_per_s = 1e6
        wait_until(lambda: any(path.stat().st_size for path in parts.glob("1-*")), otherwise=lambda: devices.output(1))
        if killed == "device":
            devices.processes[1].kill()
            devices.processes[1].wait()
            devices.start(1, *bad)
        else:
            server_process.kill(0)
            server_process.start(0)
        line.quality.bytes_per_s = None
        assert server_process.wait(0, 300) == 0, server_process.output(0)
        for rank, process in devices.processes.items():
            assert process.wait(300) == 0, devices.output(rank)
    assert "client 0: round 1 was trained before; its upload goes on" in devices.output(1)
    assert not parts.exists()
    assert sorted(path.name for path in own.iterdir()) == [MEMORY_NAME, KEPT_MODEL_NAME]
    assert_as_alone(devices, server_process)


@pytest.mark.long
def test_a_silo_with_fedml_that_is_killed_goes_on_with_its_model_and_begins_its_upload_anew(
    devices: Devices, server: Callable[[], Silos]
) -> None:
    devices.write("fedavg", model_args={"width": 20}, dapper_args={"min_clients_per_round": 3})
    silos = server()
    for rank in range(2, NUM_DEVICES + 1):
        devices.start(rank)
    port = int(devices.grpc["server_address"].rpartition(":")[2])
    with Line(port, quality=Quality(bytes_per_s=5e5)) as line:
        bad = ("--set", f"comm_args.dapper_grpc.server_address=localhost:{line.port}")
        silos.start(1, options=bad)
        own = devices.folder / "runs" / "silo-1" / PARTS_NAME
        begun = begun_in(own, "0-*", silos)
        silos.kill(1)
        held = begun.stat().st_size
        missing = int(begun.name.split("-")[1]) - held
        carried = line.down
        silos.start(1, options=bad)
        upload = begun_in(silos.run_dir / PARTS_NAME, "1-*", silos)
        assert held > PART_BYTES / 2
        assert line.down - carried < missing + 50_000
        silos.kill(1)
        silos.start(1, options=bad)
        again = begun_in(silos.run_dir / PARTS_NAME, "1-*", silos, besides=upload.name)
        assert again != upload  # it was trained anew, in other seconds
        line.quality.bytes_per_s = None
        for rank in (0, 1):
            assert silos.wait(rank, 300) == 0, silos.output(rank)
    assert not own.parent.exists()
    assert_as_alone(devices, silos)


def begun_in(folder: Path, pattern: str, silos: Silos, besides: str = "") -> Path:
    """The file of a payload of which something has come."""

    def found() -> list[Path]:
        return [path for path in folder.glob(pattern) if path.name != besides and path.stat().st_size]

    wait_until(lambda: bool(found()), otherwise=lambda: silos.output(1))
    return found()[0]


def assert_as_alone(devices: Devices, across: Silos) -> None:
    """The federation's model is that of a simulation, bit for bit."""
    simulate(build_experiment(load_settings([devices.folder / "simulation.yaml"])), run_dir=devices.folder / "alone")
    alone = load_file(devices.folder / "alone" / "global_model.safetensors")
    found = load_file(across.run_dir / "global_model.safetensors")
    assert all(alone[name].equal(found[name]) for name in alone)


def test_nobody_waits_while_a_large_payload_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does its own sender, who may begin anew; but it is not read twice at a time."""
    parts = PartFolder(tmp_path / "parts", 10 * MIB)
    payload = os.urandom(PART_BYTES)
    envelope = upload(payload).envelope.model_copy(update={"digest": upload(payload).digest})
    reads, goes_on = Event(), Event()

    def slowly(content: bytes) -> Any:
        reads.set()
        assert goes_on.wait(60)
        return sha256(content)

    sha256 = hashlib.sha256
    with parts.arriving(1, envelope) as older, ThreadPoolExecutor(1) as pool:
        older.add(payload)
        monkeypatch.setattr("fedml_dapper.secure_grpc.parts.hashlib.sha256", slowly)
        read = pool.submit(older.whole)
        assert reads.wait(60)
        assert parts.begin(2, Whole("2" * 64, MIB)) == 0
        with parts.arriving(1, envelope.model_copy(update={"begins_at": PART_BYTES})) as newer:
            with pytest.raises(PartsError, match="an earlier call's payload is being read still"):
                newer.whole()
            goes_on.set()
            with pytest.raises(PartsError, match="a newer call has taken the place"):
                read.result(60)
            assert newer.whole() == payload
