"""One seed, one experiment, every runner: the same global model, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger, simulate

from .processes import Silos, address_table
from .test_mpi import MPIEXEC, mpirun

SettingsFactory = Callable[..., Settings]
FIVE_LEVELS = ("client_num_in_total=5", "client_num_per_round=5", "threads=1")


def without_seconds(rounds: list[RoundRecord]) -> list[object]:
    return [
        (record.round, record.scores, [client.model_copy(update={"seconds": 0.0}) for client in record.clients])
        for record in rounds
    ]


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
def test_in_process_mpi_and_grpc_train_the_same_model(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    experiment = build_experiment(tiny_settings(*FIVE_LEVELS))
    assert {profile.level for profile in experiment.profiles} == {1, 2, 3, 4, 5}
    server, rounds = simulate(experiment)

    results = {}
    mpi = tmp_path / "mpi.yaml"
    mpi.write_text(tiny_settings(*FIVE_LEVELS, "backend=MPI").as_yaml())
    for ranks in (2, 3):
        results[f"MPI, {ranks} ranks"] = tmp_path / f"mpi{ranks}"
        command = ("-m", "fedml_dapper", "--cf", mpi, "--output", results[f"MPI, {ranks} ranks"])
        finished = mpirun(ranks, tmp_path, *command)
        assert finished.returncode == 0, finished.stderr

    content = yaml.safe_load(tiny_settings(*FIVE_LEVELS).as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = {"backend": "GRPC", "grpc_ipconfig_path": str(address_table(tmp_path, 5))}
    grpc = tmp_path / "grpc.yaml"
    grpc.write_text(yaml.safe_dump(content))
    silos = Silos(tmp_path, grpc, 5)
    try:
        silos.start_all()
        assert silos.wait(0) == 0, silos.output(0)
    finally:
        silos.stop()
    results["gRPC"] = silos.run_dir

    for name, folder in results.items():
        saved = load_file(folder / "global_model.safetensors")
        assert saved.keys() == server.state.weights.keys()
        for key, tensor in server.state.weights.items():
            assert torch.equal(saved[key], tensor), f"{name}: {key} differs"
        assert without_seconds(read_ledger(folder / "ledger.jsonl")[1]) == without_seconds(rounds), name


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
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
