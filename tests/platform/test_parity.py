"""One seed, one experiment, every runner: the same global model, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.federation import RoundRecord, Server, build_experiment, read_ledger, simulate

from ..grids import ADAPTED, ON_ADAPTERS
from .processes import fedml_grpc
from .test_mpi import MPIEXEC, mpirun

if TYPE_CHECKING:
    from .federation_in_threads import Federation

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], "Federation"]
NUM_SILOS = 5
FIVE_LEVELS = ("client_num_in_total=5", "client_num_per_round=5", "threads=1")
needs_mpiexec = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")

UNLIKE = {"seconds": 0.0, "change": None, "extras_norm": None}
"""The last two are measured across silos alone."""


def without_seconds(rounds: list[RoundRecord]) -> list[object]:
    return [
        (record.round, record.scores, [client.model_copy(update=UNLIKE) for client in record.clients])
        for record in rounds
    ]


def by_mpi(settings: SettingsFactory, folder: Path, ranks: int, *overrides: str) -> Path:
    """The run's folder."""
    file, output = folder / "mpi.yaml", folder / f"mpi{ranks}"
    file.write_text(settings(*overrides, "backend=MPI").as_yaml())
    finished = mpirun(ranks, folder, "-m", "fedml_dapper", "--cf", file, "--output", output)
    assert finished.returncode == 0, finished.stderr
    return output


def by_grpc(settings: SettingsFactory, folder: Path, in_threads: InThreads, *overrides: str) -> Path:
    """The run's folder."""
    content = yaml.safe_load(settings(*overrides).as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = fedml_grpc(folder, NUM_SILOS)
    file = folder / "grpc.yaml"
    file.write_text(yaml.safe_dump(content))
    federation = in_threads(file, NUM_SILOS)
    federation.start_all()
    federation.wait()
    return federation.run_dir


def assert_same_model(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    saved = load_file(folder / "global_model.safetensors")
    assert saved.keys() == weights.keys()
    for key, tensor in weights.items():
        assert torch.equal(saved[key], tensor), f"{folder.name}: {key} differs"


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["dapperfl", "profl"])
def test_in_process_and_grpc_train_the_same_model(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, method: str
) -> None:
    """ProFL sends back less than it was sent, and leaves a level out."""
    own = (*FIVE_LEVELS, f"method={method}")
    experiment = build_experiment(tiny_settings(*own))
    assert {profile.level for profile in experiment.profiles} == {1, 2, 3, 4, 5}
    server, rounds = simulate(experiment)
    folder = by_grpc(tiny_settings, tmp_path, in_threads, *own)
    assert_same_model(folder, server.state.weights)
    assert without_seconds(read_ledger(folder / "ledger.jsonl")[1]) == without_seconds(rounds)


@needs_mpiexec
@pytest.mark.parametrize(
    ("ranks", "method"),
    [
        pytest.param(2, "dapperfl", marks=pytest.mark.nightly),
        pytest.param(3, "dapperfl", marks=pytest.mark.long),
        pytest.param(3, "profl", marks=pytest.mark.nightly),
    ],
)
def test_mpi_trains_the_same_model(tiny_settings: SettingsFactory, tmp_path: Path, ranks: int, method: str) -> None:
    own = (*FIVE_LEVELS, f"method={method}")
    server, rounds = simulate(build_experiment(tiny_settings(*own)))
    folder = by_mpi(tiny_settings, tmp_path, ranks, *own)
    assert_same_model(folder, server.state.weights)
    assert without_seconds(read_ledger(folder / "ledger.jsonl")[1]) == without_seconds(rounds)


def adapted(method: str) -> tuple[str, ...]:
    return (*FIVE_LEVELS, *ADAPTED, "epochs=1", "client_share=0.05", f"method={method}")


@pytest.mark.parametrize("method", [pytest.param(name, marks=pytest.mark.nightly) for name, _ in ON_ADAPTERS])
def test_silos_come_to_the_same_adapters(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, method: str
) -> None:
    server, _ = simulate(build_experiment(tiny_settings(*adapted(method))))
    assert_same_model(by_grpc(tiny_settings, tmp_path, in_threads, *adapted(method)), server.whole_model())


@needs_mpiexec
@pytest.mark.parametrize(
    "method", [pytest.param("flexlora", marks=pytest.mark.long), pytest.param("hetlora", marks=pytest.mark.nightly)]
)
def test_ranks_come_to_the_same_adapters(tiny_settings: SettingsFactory, tmp_path: Path, method: str) -> None:
    server, _ = simulate(build_experiment(tiny_settings(*adapted(method))))
    assert_same_model(by_mpi(tiny_settings, tmp_path, 3, *adapted(method)), server.whole_model())


def private(where: str) -> tuple[str, ...]:
    mechanism = f"{{clip: 0.5, noise_multiplier: 0.8, delta: 1.0e-5, where: {where}, noise_seed: run}}"
    return (
        *FIVE_LEVELS, "method=dapperfl_slim", "norm=standardised", "epochs=1", "client_share=0.05",
        "aggregation_weights=uniform", f"dapper_args.privacy={mechanism}",
    )  # fmt: skip


def assert_same_noise(folder: Path, server: Server, rounds: list[RoundRecord]) -> None:
    assert_same_model(folder, server.state.weights)
    again = read_ledger(folder / "ledger.jsonl")[1]
    assert [record.privacy for record in again] == [record.privacy for record in rounds]


@pytest.mark.nightly
@pytest.mark.parametrize("where", [pytest.param("server", marks=pytest.mark.nightly), "client"])
def test_noise_and_epsilon_are_the_same_over_grpc(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, where: str
) -> None:
    expected = simulate(build_experiment(tiny_settings(*private(where))))
    assert_same_noise(by_grpc(tiny_settings, tmp_path, in_threads, *private(where)), *expected)


@needs_mpiexec
@pytest.mark.nightly
@pytest.mark.parametrize("where", ["server", "client"])
def test_noise_and_epsilon_are_the_same_under_mpi(tiny_settings: SettingsFactory, tmp_path: Path, where: str) -> None:
    expected = simulate(build_experiment(tiny_settings(*private(where))))
    assert_same_noise(by_mpi(tiny_settings, tmp_path, 3, *private(where)), *expected)


PERSONAL_LAYERS = (*FIVE_LEVELS, "personal_layers=norms")


@needs_mpiexec
@pytest.mark.nightly
def test_what_stays_at_home_travels_with_its_client_from_rank_to_rank(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    server, rounds = simulate(build_experiment(tiny_settings(*PERSONAL_LAYERS)))
    folder = by_mpi(tiny_settings, tmp_path, 3, *PERSONAL_LAYERS)
    assert_same_model(folder, server.state.weights)
    assert without_seconds(read_ledger(folder / "ledger.jsonl")[1]) == without_seconds(rounds)


@pytest.mark.nightly
def test_what_stays_at_home_stays_with_its_silo(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    server, rounds = simulate(build_experiment(tiny_settings(*PERSONAL_LAYERS)))
    folder = by_grpc(tiny_settings, tmp_path, in_threads, *PERSONAL_LAYERS)
    assert_same_model(folder, server.state.weights)
    again = read_ledger(folder / "ledger.jsonl")[1]  # whose server cannot test models that are not with it
    losses = [[client.loss for client in record.clients] for record in rounds]
    assert [[client.loss for client in record.clients] for record in again] == losses
    assert all(record.scores is None for record in again)


@needs_mpiexec
@pytest.mark.nightly
@pytest.mark.parametrize("late", ["dropped", "kept"])
def test_uploads_that_do_not_count_in_their_round_hang_no_rank(
    tiny_settings: SettingsFactory, tmp_path: Path, late: str
) -> None:
    clock = f"{{over_selection: 1.5, late: {late}}}"
    fleet = f"{{devices: [raspberry_pi_5, phone_low], network: flash_p50, round_s: 60, clock: {clock}}}"
    clocked = (*FIVE_LEVELS, "client_num_per_round=3", "epochs=1", f"dapper_args.fleet={fleet}")
    server, rounds = simulate(build_experiment(tiny_settings(*clocked)))
    assert len(rounds[0].absent) == 2
    mpi, folder = tmp_path / "mpi.yaml", tmp_path / "out"
    mpi.write_text(tiny_settings(*clocked, "backend=MPI").as_yaml())
    finished = mpirun(3, tmp_path, "-m", "fedml_dapper", "--cf", mpi, "--output", folder)
    assert finished.returncode == 0, finished.stderr
    saved = load_file(folder / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    again = read_ledger(folder / "ledger.jsonl")[1]
    assert [record.clock for record in again] == [record.clock for record in rounds]
    assert without_seconds(again) == without_seconds(rounds)
