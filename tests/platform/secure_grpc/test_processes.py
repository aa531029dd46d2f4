"""Federations of real processes over DAPPER_GRPC: what a process is needed for. The rest is in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods import Downlink

from ...waiting import wait_until
from ..processes import Silos, listens
from ..slow_silo import AT_WORK, busy_program, let_go
from ..timeless_server import let_time_pass_in_a_halt, timeless_program, wait_for_all_but
from .experiment_file import experiment_file, of_four
from .impostor import Impostor
from .replay import differences_to_replay

SettingsFactory = Callable[..., Settings]
TOKEN = "a-token-of-many-characters"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    """``federation(settings, config)``: that experiment as a server and silos in processes of their own."""
    running: list[Silos] = []

    def build(settings: Settings, config: SecureGrpcConfig) -> Silos:
        file = experiment_file(tmp_path, settings, config)
        running.append(Silos(tmp_path, file, settings.train_args.client_num_in_total))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def wait_for_port(config: SecureGrpcConfig, silos: Silos) -> None:
    port = int(config.server_address.rpartition(":")[2])

    def is_open() -> bool:
        assert silos.processes[0].poll() is None, silos.output(0)
        return listens(port)

    wait_until(is_open)


@pytest.mark.long
def test_the_model_is_the_in_process_one(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings = of_four(tiny_settings, "comm_round=3")
    monkeypatch.setenv("DAPPER_TOKEN", TOKEN)
    silos = federation(settings, config.model_copy(update={"token_variable": "DAPPER_TOKEN"}))
    silos.start_all()
    assert [silos.wait(rank) for rank in range(5)] == [0] * 5, silos.output(0)
    assert TOKEN not in silos.output(0) + silos.output(1)
    server, rounds = simulate(build_experiment(settings))
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert saved.keys() == server.state.weights.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in silos.rounds()] == [record.scores for record in rounds]


@pytest.mark.long
def test_a_killed_server_goes_on_with_silos_that_remember_more_than_it_does(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig
) -> None:
    settings = of_four(tiny_settings, "method=scaffold", "comm_round=6", "checkpoint_every=3", "round_timeout_s=600")
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
    assert [record.round for record in silos.rounds()] == list(range(1, 7))


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
