"""Silos sum under masks: the same model, whoever is killed; or the round is void."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, build_experiment, simulate

from ...grids import sampled
from ..federation_in_threads import Federation
from ..processes import Silos
from .conftest import make_certificates
from .dying_silo import burying_server, dying_program, dying_server
from .experiment_file import experiment_file
from .replay import differences_to_replay

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
SLIM = ("heterofl", "fedrolex", "dapperfl_slim")


NOISE = "where: distributed, noise_multiplier: 0.5, delta: 1.0e-5, noise_seed: run, "
"""Of clients together, which follows from the seed, so that it is drawn again here."""


def secure(threshold: int, noise: str = "") -> str:
    args = f"{{threshold: {threshold}, min_holders: 2, step_timeout_s: 600}}"
    return f"dapper_args.privacy={{{noise}secure_aggregation: {args}}}"


SECURE = secure(3)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(settings: Settings, config: SecureGrpcConfig, programs: Mapping[int, Path] | None = None) -> Silos:
        file = experiment_file(tmp_path, settings, config)
        running.append(Silos(tmp_path, file, settings.train_args.client_num_in_total, programs=programs))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def settings_of(tiny_settings: SettingsFactory, silos: int, *overrides: str) -> Settings:
    return tiny_settings(
        f"client_num_in_total={silos}", f"client_num_per_round={silos}", "threads=1", "epochs=1", "image_size=16",
        "client_share=0.03", "norm=group", "aggregation_weights=uniform",
        "dapper_args.params.heterofl={masked_loss: false}", "dapper_args.params.fedrolex={masked_loss: false}",
        *overrides,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "noise"),
    sampled(
        [("heterofl", NOISE), ("fedavg", ""), *((name, "") for name in SLIM)], ("heterofl", "fedavg"), ("heterofl",)
    ),
)
def test_the_model_is_that_of_the_simulation_bit_for_bit(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path, method: str,
    noise: str,
) -> None:  # fmt: skip
    settings = settings_of(tiny_settings, 4, secure(3, noise), f"method={method}", "comm_round=2")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    federation.start_all()
    federation.wait()
    server, rounds = simulate(build_experiment(settings))
    saved = load_file(federation.run_dir / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in federation.rounds()] == [record.scores for record in rounds]
    assert [record.privacy for record in federation.rounds()] == [record.privacy for record in rounds]


@pytest.mark.nightly
def test_of_six_silos_one_is_killed_before_it_sends_and_one_after(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    """The sums are those of the clients that the ledger names, bit for bit, with the noise of these."""
    config = config.model_copy(update={"certificates": make_certificates(tmp_path / "six", 6)})
    settings = settings_of(tiny_settings, 6, secure(4, NOISE), "method=fedavg", "comm_round=2")
    programs = {2: dying_program(tmp_path, "Masked", "before"), 5: dying_program(tmp_path, "Masked", "after")}
    silos = federation(settings, config, {0: burying_server(tmp_path), **programs})
    silos.start_all()
    assert silos.wait(0) == 0, silos.output(0)
    assert [silos.wait(rank) for rank in (2, 5)] == [-9, -9]
    first, second = silos.rounds()
    assert [client.client for client in first.clients] == [0, 2, 3, 4, 5]  # silo 5 had sent, so it is in the sum
    assert first.absent == (1,)
    assert [client.client for client in second.clients] == [0, 2, 3, 5]
    assert "client 1 left the sum: it did not answer in time" in silos.output(0)
    assert differences_to_replay(build_experiment(settings), silos) == []


@pytest.mark.nightly
def test_below_the_threshold_the_round_is_void_and_says_so(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = settings_of(tiny_settings, 4, SECURE, "method=fedavg", "comm_round=2")
    dies = dying_program(tmp_path, "Masked", "before")
    silos = federation(settings, config, {0: burying_server(tmp_path), 2: dies, 3: dies})
    silos.start_all()
    assert silos.wait(0) == 0, silos.output(0)
    first, second = silos.rounds()
    assert first.rolled_back == "the sum is void: 2 clients have sent their part, and the threshold is 3"
    assert second.rolled_back == "the sum is void: 2 clients are there, and the threshold is 3"
    assert (first.clients, second.clients) == ((), ())
    initial = build_experiment(settings).method.problem.backbone.state_dict()
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in initial.items())


@pytest.mark.nightly
def test_a_round_that_a_crashed_server_had_opened_is_void_and_not_opened_again(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = settings_of(tiny_settings, 4, SECURE, "method=fedavg", "comm_round=3", "round_timeout_s=600")
    silos = federation(settings, config)
    silos.start(0, program=dying_server(tmp_path, round_=2))
    for rank in range(1, 5):
        silos.start(rank)
    assert silos.wait(0) == -9
    silos.start(0)
    assert [silos.wait(rank) for rank in range(5)] == [0] * 5, silos.output(0)
    first, second, third = silos.rounds()
    assert len(first.clients) == len(third.clients) == 4
    assert second.rolled_back is not None
    assert "may have been opened before the server crashed, and nothing is opened twice" in second.rolled_back
    assert list(second.refused) == [0, 1, 2, 3]  # silos know it too
    assert first.scores is not None
    assert second.scores is not None
    assert second.scores.domain_loss == first.scores.domain_loss  # the model is that of the round before
    assert third.scores != second.scores


def test_a_silo_of_a_version_without_it_hears_that_in_a_line(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    introduced_as: Callable[..., None],
) -> None:  # fmt: skip
    introduced_as(4, version="0.1.0", schema=4)
    settings = settings_of(tiny_settings, 4, SECURE, "method=fedavg")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    federation.start(0)
    federation.start(4)
    failure = federation.error_of(4)
    assert isinstance(failure, ConfigError)
    assert "this run sums under masks, which its version of fedml_dapper cannot: upgrade" in str(failure)


@pytest.mark.nightly
def test_a_second_run_sums_once_silos_are_told_that_it_is_one(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig
) -> None:
    """Else it is the same to them as a server that asks a second time, of other survivors."""
    silos = federation(settings_of(tiny_settings, 4, SECURE, "method=fedavg", "comm_round=1"), config)

    def run_again(*options: str) -> RoundRecord:
        shutil.rmtree(silos.run_dir, ignore_errors=True)
        silos.start(0)
        for rank in range(1, 5):
            silos.start(rank, options=options)
        assert [silos.wait(rank) for rank in range(5)] == [0] * 5, silos.output(0)
        return silos.rounds()[0]

    assert run_again().rolled_back is None
    assert run_again().rolled_back is not None
    assert "another list of survivors was signed in this round of this experiment before" in silos.output(1)
    assert run_again("--restart").rolled_back is None
