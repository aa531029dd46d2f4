"""Federations over DAPPER_GRPC in threads: the same model, whoever knocks at the door, and whatever silos send."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fedml_dapper.commands.fedml import main
from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.platform.callers import MAX_STARTS
from fedml_dapper.secure_grpc import link
from fedml_dapper.secure_grpc.link import SMALL_MESSAGES
from fedml_dapper.secure_grpc.parcel import MAX_ENVELOPE_BYTES, MIB, Parcel

from ...line import Line
from ...waiting import wait_until
from ..federation_in_threads import Federation
from .experiment_file import experiment_file, of_four
from .held import Hold
from .impostor import Crafted, Impostor
from .raw_silo import RawSilo, parcel, refused

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
TOKEN = "a-token-of-many-characters"


def with_impostor(federation: Federation, settings: Settings, config: SecureGrpcConfig) -> Impostor:
    """A server that can be called, three of its four silos, and somebody in the place of the fourth."""
    for rank in range(4):
        federation.start(rank)
    federation.wait_for(1, 2, 3)
    return Impostor(config, 4, build_experiment(settings))


def answer_to(attempt: Callable[[], object]) -> str:
    """The status with which the server ends a call, once it is not busy with another of the same silo."""
    statuses: list[grpc.StatusCode] = []

    def is_heard() -> bool:
        statuses.append(refused(attempt)[0])
        return statuses[-1] is not grpc.StatusCode.RESOURCE_EXHAUSTED

    wait_until(is_heard)
    return statuses[-1].name


def truncated(whole: Parcel) -> Iterator[bytes]:
    frames = whole.frames()
    yield next(frames)
    yield next(frames)
    raise EOFError  # which ends the stream as a lost connection does


def check_same_model(federation: Federation, settings: Settings) -> None:
    server, rounds = simulate(build_experiment(settings))
    saved = load_file(federation.run_dir / "global_model.safetensors")
    assert saved.keys() == server.state.weights.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in federation.rounds()] == [record.scores for record in rounds]


@pytest.mark.long
def test_the_model_is_the_in_process_one_and_strangers_change_nothing(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, other_certificates: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    settings = of_four(tiny_settings, "comm_round=7")  # whose uploads together exceed what may wait of a silo
    monkeypatch.setenv("DAPPER_TOKEN", TOKEN)
    config = config.model_copy(update={"token_variable": "DAPPER_TOKEN", "max_message_mb": 1})
    federation, hold = in_threads(experiment_file(tmp_path, settings, config), 4), Hold()
    for rank in range(4):
        federation.start(rank)
    federation.start(4, trainer=hold.trainer)
    hold.wait_until_at_work()  # the run waits for it meanwhile

    two = read_credentials(config, 2)
    foreign = read_credentials(config.model_copy(update={"certificates": other_certificates}), 1)
    insider = RawSilo(config, two, TOKEN)
    large = parcel(os.urandom(MIB), sender=2, session="2" * 32)
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
    hold.let_go()
    assert statuses.pop("truncated") in ("CANCELLED", "UNKNOWN")
    assert statuses == {
        "no certificate": "UNAVAILABLE",
        "another authority": "UNAVAILABLE",
        "another token": "UNAUTHENTICATED",
        "in silo 1's name": "PERMISSION_DENIED",
        "oversized": "INVALID_ARGUMENT",
        "a pickle": "INVALID_ARGUMENT",
    }

    federation.wait()
    assert "silo-2 sent a message in the name of silo-1" in caplog.text
    assert not made.exists()
    assert TOKEN not in caplog.text
    check_same_model(federation, settings)
    rounds = federation.rounds()
    assert all(not record.absent for record in rounds)
    sent = sum(client.bytes_up for record in rounds for client in record.clients if client.client == 0)
    assert sent + 7 * MAX_ENVELOPE_BYTES > MIB + SMALL_MESSAGES * MAX_ENVELOPE_BYTES


@pytest.mark.nightly
def test_a_silo_that_sends_garbage_costs_only_its_own_rounds(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    settings = of_four(tiny_settings, "comm_round=3")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    garbler = with_impostor(federation, settings, config)
    made = tmp_path / "made"
    garbler.come_online()
    for round_ in range(1, 4):
        assert garbler.model(300)
        garbler.say(kind=999)
        garbler.answer(pickle.dumps(Crafted(made)))
        federation.wait_for_round(round_)
    garbler.say_goodbye()
    federation.wait()
    assert [record.absent for record in federation.rounds()] == [(3,), (3,), (3,)]
    assert [[client.client for client in record.clients] for record in federation.rounds()] == [[0, 1, 2]] * 3
    assert "dropped a message of unknown type '999' from rank 4" in caplog.text
    assert not made.exists()


@pytest.mark.nightly
def test_a_silo_that_starts_again_and_again_costs_the_others_no_time(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    settings = of_four(tiny_settings, "comm_round=3", "round_timeout_s=600")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    flooder = with_impostor(federation, settings, config)

    def is_given_up_once_more(round_: int) -> bool:
        with suppress(grpc.RpcError):  # it calls too often
            flooder.come_online(life=secrets.token_hex(8))
            flooder.say(b"as if it had trained", params={"ticket": secrets.token_hex(8)})
        return caplog.text.count("client 3 was started again too often; the round goes on without it") >= round_

    for round_ in range(1, 4):
        wait_until(partial(is_given_up_once_more, round_))
        federation.wait_for_round(round_)  # which does not wait for its timeout
    flooder.say_goodbye()
    federation.wait()
    assert [record.absent for record in federation.rounds()] == [(3,)] * 3
    assert caplog.text.count("it is sent the round's model once more") <= MAX_STARTS * 3


@pytest.mark.nightly
def test_rounds_do_not_wait_for_a_silo_that_floods_the_server(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for allowance in ("CALLS", "BUSY"):  # or a slow machine would not call often enough
        monkeypatch.setattr(link, f"{allowance}_AT_ONCE", 50.0)
        monkeypatch.setattr(link, f"{allowance}_PER_SECOND", 0.5)
    settings = of_four(tiny_settings, "comm_round=2", "round_timeout_s=600")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    flooder = with_impostor(federation, settings, config)

    def is_said() -> bool:
        with suppress(grpc.RpcError):  # it calls too often
            flooder.come_online()
        return "silo-4 floods the server with calls; the round does not wait for it" in caplog.text

    wait_until(is_said)
    for round_ in (1, 2):
        federation.wait_for_round(round_)  # which does not wait for its timeout
    monkeypatch.undo()
    federation.wait()
    assert [record.absent for record in federation.rounds()] == [(3,)] * 2


@pytest.mark.nightly
def test_a_line_that_is_cut_and_mended_costs_nothing_but_time(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    settings = of_four(tiny_settings, "method=scaffold", "comm_round=4", "round_timeout_s=600")
    with Line(int(config.server_address.rpartition(":")[2])) as line:
        dialled = {"server_address": f"localhost:{line.port}", "listen_address": config.server_address}
        file = experiment_file(tmp_path, settings, config.model_copy(update=dialled))
        federation, holds = in_threads(file, 4), {4: Hold(2), 3: Hold(3)}
        for rank in range(5):
            federation.start(rank, **({"trainer": holds[rank].trainer} if rank in holds else {}))
        for cuts, hold in enumerate(holds.values(), start=1):
            hold.wait_until_at_work()  # so the round is open
            wait_until(lambda cuts=cuts: caplog.text.count("connected to the server at") == 4 * cuts)  # all can lose it
            line.cut()
            wait_until(lambda cuts=cuts: caplog.text.count("lost the server at") == 4 * cuts)
            hold.let_go()
            wait_until(lambda cuts=cuts: caplog.text.count("the server is not there yet") >= cuts)  # for its upload
            line.mend()
        federation.wait()
    check_same_model(federation, settings)


def test_missing_certificates_are_said_before_anything_starts(
    tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    file = experiment_file(tmp_path, of_four(tiny_settings), config.model_copy(update={"certificates": empty}))
    for rank, role in ((0, "server"), (1, "client")):
        result = CliRunner().invoke(main, ["--cf", str(file), "--rank", str(rank), "--role", role])
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert "ca.pem: cannot be read" in line
        assert "run/make_certs.sh" in line
