"""Federations of real processes over DAPPER_GRPC: the same model, whoever knocks at the door meanwhile."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.credentials import read_credentials
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods import Downlink
from fedml_dapper.platform.round_manager import MAX_STARTS
from fedml_dapper.platform.secure_grpc.link import SMALL_MESSAGES
from fedml_dapper.platform.secure_grpc.parcel import MAX_ENVELOPE_BYTES, MIB, Parcel

from ...waiting import wait_until
from ..processes import Silos
from ..slow_silo import AT_WORK, busy_program, let_go
from ..timeless_server import let_time_pass_in_a_halt, timeless_program, wait_for_all_but
from .experiment_file import experiment_file
from .impostor import Crafted, Impostor
from .line import Line
from .raw_silo import RawSilo, parcel, refused
from .replay import differences_to_replay

SettingsFactory = Callable[..., Settings]
TOKEN = "a-token-of-many-characters"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    """``federation(settings, config)``: that experiment as a server and silos in processes of their own."""
    running: list[Silos] = []

    def build(settings: Settings, config: SecureGrpcConfig, cold: Sequence[int] = ()) -> Silos:
        file = experiment_file(tmp_path, settings, config)
        running.append(Silos(tmp_path, file, settings.train_args.client_num_in_total, cold=cold))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def of_four(tiny_settings: SettingsFactory, *overrides: str) -> Settings:
    """As many silos as the embedded suite has domains."""
    return tiny_settings("client_num_in_total=4", "client_num_per_round=4", "threads=1", "epochs=1", *overrides)


def wait_for_port(config: SecureGrpcConfig, silos: Silos) -> None:
    host, _, port = config.server_address.rpartition(":")

    def is_open() -> bool:
        assert silos.processes[0].poll() is None, silos.output(0)
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError:
            return False
        return True

    wait_until(is_open)


def with_impostor(silos: Silos, settings: Settings, config: SecureGrpcConfig) -> Impostor:
    """A server that can be called, three of its four silos, and somebody in the place of the fourth."""
    for rank in range(4):
        silos.start(rank)
    wait_for_port(config, silos)
    return Impostor(config, 4, build_experiment(settings))


def answer_to(attempt: Callable[[], object]) -> str:
    """The status with which the server ends a call, once it is not busy with another of the same silo."""
    while (status := refused(attempt)[0]) is grpc.StatusCode.RESOURCE_EXHAUSTED:
        time.sleep(0.1)
    return status.name


def truncated(whole: Parcel) -> Iterator[bytes]:
    frames = whole.frames()
    yield next(frames)
    yield next(frames)
    raise EOFError  # which ends the stream as a lost connection does


def test_the_model_is_the_in_process_one_and_strangers_change_nothing(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig,
    other_certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings = of_four(tiny_settings, "comm_round=10")  # whose uploads together exceed what may wait of a silo
    server, rounds = simulate(build_experiment(settings))

    monkeypatch.setenv("DAPPER_TOKEN", TOKEN)
    config = config.model_copy(update={"token_variable": "DAPPER_TOKEN", "max_message_mb": 2})
    silos = federation(settings, config, cold=(0, 1))
    for rank in range(5):
        silos.start(rank, program=busy_program(tmp_path) if rank == 4 else None)
    silos.wait_for_words(AT_WORK, rank=4)  # the run waits for it meanwhile

    two = read_credentials(config, 2)
    foreign = read_credentials(config.model_copy(update={"certificates": other_certificates}), 1)
    insider = RawSilo(config, two, TOKEN)
    large = parcel(os.urandom(2 * MIB), sender=2, session="2" * 32)
    made = tmp_path / "made"
    crafted = pickle.dumps(Crafted(made))
    attempts = {
        "no certificate": lambda: RawSilo(config, None, TOKEN).deliver(parcel().frames()),
        "another authority": lambda: RawSilo(config, foreign, TOKEN).deliver(parcel().frames()),
        "another token": lambda: RawSilo(config, two, TOKEN[::-1]).deliver(parcel(sender=2).frames()),
        "in silo 1's name": lambda: insider.deliver(parcel(b"garbage", sender=1).frames()),
        "oversized": lambda: insider.deliver(parcel(sender=2, payload_key="p", payload_bytes=2**40).frames()),
        "truncated": lambda: insider.deliver(truncated(large)),
        "a pickle": lambda: insider.deliver(iter([crafted])),
    }
    statuses = {name: answer_to(attempt) for name, attempt in attempts.items()}
    let_go(tmp_path)
    assert statuses.pop("truncated") in ("CANCELLED", "UNKNOWN")
    assert statuses == {
        "no certificate": "UNAVAILABLE",
        "another authority": "UNAVAILABLE",
        "another token": "UNAUTHENTICATED",
        "in silo 1's name": "PERMISSION_DENIED",
        "oversized": "INVALID_ARGUMENT",
        "a pickle": "INVALID_ARGUMENT",
    }

    assert silos.wait(0) == 0, silos.output(0)
    assert [silos.wait(rank) for rank in range(1, 5)] == [0, 0, 0, 0]
    assert "silo-2 sent a message in the name of silo-1" in silos.output(0)
    assert not made.exists()
    assert TOKEN not in silos.output(0) + silos.output(1)
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert saved.keys() == server.state.weights.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in silos.rounds()] == [record.scores for record in rounds]
    assert all(not record.absent for record in silos.rounds())
    sent = sum(client.bytes_up for record in silos.rounds() for client in record.clients if client.client == 0)
    assert sent + 10 * MAX_ENVELOPE_BYTES > 2 * MIB + SMALL_MESSAGES * MAX_ENVELOPE_BYTES


@pytest.mark.long
def test_a_silo_that_sends_garbage_costs_only_its_own_rounds(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = of_four(tiny_settings, "comm_round=3")
    silos = federation(settings, config)
    garbler = with_impostor(silos, settings, config)
    made = tmp_path / "made"
    garbler.come_online()
    for round_ in range(1, 4):
        assert garbler.model(300)
        garbler.say(kind=999)
        garbler.answer(pickle.dumps(Crafted(made)))
        silos.wait_for_round(round_)
    assert silos.wait(0) == 0, silos.output(0)
    assert [record.absent for record in silos.rounds()] == [(3,), (3,), (3,)]
    assert [[client.client for client in record.clients] for record in silos.rounds()] == [[0, 1, 2]] * 3
    assert "dropped a message of unknown type '999' from rank 4" in silos.output(0)
    assert not made.exists()


@pytest.mark.long
def test_a_server_that_was_halted_hears_of_those_at_work_before_it_closes_the_round(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    silos = federation(of_four(tiny_settings, "comm_round=3"), config)
    programs = {0: timeless_program(tmp_path), 4: busy_program(tmp_path)}
    for rank in range(5):
        silos.start(rank, program=programs.get(rank))
    silos.wait_for_words(AT_WORK, rank=4)
    assert wait_for_all_but(silos, 4)
    let_time_pass_in_a_halt(silos.processes[0])
    silos.wait_for_words("this process was halted")
    let_go(tmp_path)
    assert silos.wait(0) == 0, silos.output(0)
    assert [record.absent for record in silos.rounds()] == [()] * 3


@pytest.mark.long
def test_a_silo_that_floods_the_server_costs_the_others_no_time(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig
) -> None:
    settings = of_four(tiny_settings, "comm_round=6", "round_timeout_s=600")
    silos = federation(settings, config)
    flooder = with_impostor(silos, settings, config)

    def starts_all_the_time() -> None:
        while silos.processes[0].poll() is None:
            with suppress(grpc.RpcError):  # told that it calls too often, or the run is over
                flooder.come_online(life=secrets.token_hex(8))
                flooder.say(b"as if it had trained", params={"ticket": secrets.token_hex(8)})

    threading.Thread(target=starts_all_the_time, daemon=True).start()
    assert silos.wait(0, 500) == 0, silos.output(0)  # no round waited for its timeout
    assert [record.absent for record in silos.rounds()] == [(3,)] * 6
    said = silos.output(0)
    assert said.count("it is sent the round's model once more") <= MAX_STARTS * 6
    assert "client 3 was started again too often; the round goes on without it" in said


@pytest.mark.long
def test_a_silo_that_is_killed_at_work_and_started_again_misses_no_round(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    silos = federation(of_four(tiny_settings, "comm_round=4", "round_timeout_s=600"), config)
    for rank in range(5):
        silos.start(rank, program=busy_program(tmp_path) if rank == 3 else None)
    silos.wait_for_words(AT_WORK, rank=3)
    silos.wait_for_answers_of_all_but(3)
    silos.kill(3)
    silos.start(3)
    assert [silos.wait(rank) for rank in range(5)] == [0, 0, 0, 0, 0], silos.output(0)
    assert [record.absent for record in silos.rounds()] == [()] * 4
    assert "client 2 was started again; it is sent the round's model once more" in silos.output(0)


@pytest.mark.long
def test_a_killed_server_goes_on_with_silos_that_remember_more_than_it_does(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig
) -> None:
    settings = of_four(tiny_settings, "method=scaffold", "comm_round=8", "checkpoint_every=3", "round_timeout_s=600")
    silos = federation(settings, config)
    silos.start_all()
    silos.wait_for_round(4)  # two rounds before the next checkpoint
    silos.kill(0)
    silos.start(0)
    assert [silos.wait(rank) for rank in range(5)] == [0, 0, 0, 0, 0], silos.output(0)
    assert "the server repeats round 4" in silos.output(1)
    server, rounds = simulate(build_experiment(settings))
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in silos.rounds()] == [record.scores for record in rounds]
    assert [record.round for record in silos.rounds()] == list(range(1, 9))


@pytest.mark.long
def test_an_answer_to_a_server_that_has_crashed_since_does_not_count(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig
) -> None:
    settings = of_four(tiny_settings, "comm_round=2", "checkpoint_every=2", "round_timeout_s=600")
    experiment = build_experiment(settings)
    silos = federation(settings, config)
    people = [Impostor(config, rank, experiment) for rank in range(1, 5)]

    def models() -> list[Downlink]:
        received = [one.model(300) for one in people]
        assert None not in received
        return [downlink for downlink in received if downlink is not None]

    def begin() -> list[Downlink]:
        silos.start(0)
        wait_for_port(config, silos)
        for one in people:
            one.come_online()
        return models()

    for one, downlink in zip(people, begin(), strict=True):
        one.answer(one.encoded(one.trained(downlink)))
    patient = people[0]
    earlier, stale = patient.ticket, patient.trained(models()[0])
    silos.kill(0)

    downlinks = begin()  # of round 1 again: there is no checkpoint yet. This time one of them is of no use
    people[3].answer(b"noise")
    for one, downlink in zip(people[:3], downlinks[:3], strict=True):
        one.answer(one.encoded(one.trained(downlink)))
    downlinks = models()
    assert stale.round == downlinks[0].round == 2
    patient.answer(patient.encoded(stale), earlier)
    for one, downlink in zip(people, downlinks, strict=True):
        one.answer(one.encoded(one.trained(downlink)))
    assert silos.wait(0) == 0, silos.output(0)
    assert [record.absent for record in silos.rounds()] == [(3,), ()]
    assert "rank 1: an upload that does not answer what it was sent last, dropped" in silos.output(0)
    assert differences_to_replay(experiment, silos) == []


@pytest.mark.long
def test_a_line_that_is_cut_and_mended_costs_nothing_but_time(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = of_four(tiny_settings, "method=scaffold", "comm_round=8", "epochs=4", "round_timeout_s=600")
    with Line(int(config.server_address.rpartition(":")[2])) as line:
        dialled = {"server_address": f"localhost:{line.port}", "listen_address": config.server_address}
        silos = federation(settings, config.model_copy(update=dialled))
        for rank in range(5):
            silos.start(rank, program=busy_program(tmp_path) if rank == 4 else None)
        silos.wait_for_words(AT_WORK, rank=4)  # the first cut, at least, comes within a round
        for round_, seconds in ((1, 1.0), (3, 4.0), (5, 12.0)):
            silos.wait_for_round(round_)
            line.cut()
            time.sleep(seconds)
            line.mend()
            let_go(tmp_path)
        assert [silos.wait(rank) for rank in range(5)] == [0, 0, 0, 0, 0], silos.output(0)
    assert "lost the server at" in silos.output(1)
    server, rounds = simulate(build_experiment(settings))
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in silos.rounds()] == [record.scores for record in rounds]


def test_missing_certificates_are_said_before_anything_starts(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    silos = federation(of_four(tiny_settings), config.model_copy(update={"certificates": empty}))
    for rank in (0, 1):
        silos.start(rank)
    for rank in (0, 1):
        assert silos.wait(rank) == 2
        [line] = silos.output(rank).splitlines()
        assert "ca.pem: cannot be read" in line
        assert "run/make_certs.sh" in line
    assert not silos.run_dir.exists()
