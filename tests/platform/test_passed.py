"""What a FedML program passes is what is trained: examples/fedml_program as a user runs it, and its mistakes."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.federation import read_ledger

from .conftest import OfflineProcess
from .processes import address_table
from .test_mpi import MPIEXEC, mpirun

if TYPE_CHECKING:
    from .federation_in_threads import Federation

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedml_program"
PROGRAM = EXAMPLE / "program.py"
SP = (EXAMPLE / "sp.yaml").read_text()


def trained_weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the program saved; it is what the run saved."""
    [saved] = folder.glob("runs/*/global_model.safetensors")
    trained: dict[str, torch.Tensor] = torch.load(folder / "trained.pt", weights_only=True)
    assert all(torch.equal(trained[name], tensor) for name, tensor in load_file(saved).items())
    return trained


def test_its_loaders_may_have_batches_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one picture, where train_args.batch_size is 64 by default."""
    pytest.importorskip("fedml", reason="fedml is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["single.py", "--cf", "sp.yaml"])
    (tmp_path / "sp.yaml").write_text(SP.replace("comm_round: 5", "comm_round: 1"))
    (tmp_path / "single.py").write_text(PROGRAM.read_text().replace("batch_size=10", "batch_size=1"))
    runpy.run_path("single.py", run_name="__main__")
    [ledger] = tmp_path.glob("runs/*/ledger.jsonl")
    assert [client.steps for client in read_ledger(ledger)[1][0].clients] == [120, 140, 160, 180]


@pytest.mark.nightly
@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
def test_its_own_network_is_trained_on_its_own_data_in_one_process_and_under_mpi(
    offline: OfflineProcess, tmp_path: Path
) -> None:
    finished = offline.run(PROGRAM, "--cf", EXAMPLE / "sp.yaml")
    assert finished.returncode == 0, finished.stderr
    assert offline.network_attempts() == ""
    alone = trained_weights(offline.folder)
    [ledger] = offline.folder.glob("runs/program-fedavg-*/ledger.jsonl")
    run, rounds = read_ledger(ledger)
    assert [client.num_samples for client in run.clients] == [60, 70, 80, 90]
    assert run.sources["model_args.model"].startswith("Sequential (source ")
    assert run.sources["data_args.dataset"].startswith("4 clients of 300 samples (sizes ")
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.global_accuracy > 80  # four classes: chance is 25

    other = tmp_path / "mpi"
    other.mkdir()
    finished = mpirun(3, other, PROGRAM, "--cf", EXAMPLE / "mpi.yaml")
    assert finished.returncode == 0, finished.stderr
    assert all(torch.equal(tensor, alone[name]) for name, tensor in trained_weights(other).items())


def test_silos_that_run_other_code_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_threads: Callable[[Path, int], Federation]
) -> None:
    platform = pytest.importorskip("fedml_dapper.platform", reason="fedml is not installed")
    config = tmp_path / "silos.yaml"
    config.write_text(
        f"{SP.replace('comm_round: 5', 'comm_round: 1').replace('{method', '{min_clients_per_round: 1, method')}"
        "common_args: {training_type: cross_silo}\n"
        f"comm_args: {{backend: GRPC, allow_pickle: true, grpc_ipconfig_path: {address_table(tmp_path, 4)}}}\n"
    )
    dataset = runpy.run_path(str(PROGRAM))["load_data"]()

    def start(rank: int, width: int) -> None:
        """A member of the example's program with a hidden layer so wide."""
        monkeypatch.setattr("sys.argv", ["program.py", "--cf", str(config), "--rank", str(rank)])
        args = platform.init()
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 4))
        federation.run(rank, platform.DistributedRunner(args, None, dataset, model, run_dir=tmp_path / "run"))

    federation = in_threads(config, 4)
    start(0, width=16)
    start(4, width=17)
    federation.wait_for(4)
    federation.let_time_pass()  # the others do not come
    refused = federation.error_of(4)
    assert isinstance(refused, DapperError)
    assert "model_args.model is Sequential (source " in str(refused)
    federation.leave(0)


@pytest.mark.parametrize(
    ("config", "program", "message"),
    [
        (
            SP + "data_args: {image_size: 16}\n",
            "",
            "data_args.image_size: belongs to data that data_args.dataset names",
        ),
        (SP + "model_args: {model: resnet10, width: 8}\n", "", "model_args.width: belongs to a network that"),
        (SP + "model_args: {norm: group}\n", "", "model_args.norm: belongs to a network that"),
        (
            SP.replace("_total: 4", "_total: 3").replace("round: 4", "round: 3"),
            "",
            "is 3, and the program passes data of",
        ),
        (SP, "Linear(16, 4)->Linear(16, 5)", "gives (B, 5), and (B, 4) is expected for the data's 4 classes"),
        (
            SP,
            "DapperClientTrainer(model, args)->DapperClientTrainer(model[:2], args)",
            "another network (Sequential), e.g",
        ),
    ],
)
def test_what_contradicts_the_settings_is_refused_with_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, program: str, message: str
) -> None:
    pytest.importorskip("fedml")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program.py", "--cf", "sp.yaml"])
    (tmp_path / "sp.yaml").write_text(config)
    before, _, after = program.partition("->")
    code = PROGRAM.read_text()
    assert before in code
    (tmp_path / "program.py").write_text(code.replace(before, after) if program else code)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        runpy.run_path("program.py", run_name="__main__")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


OWN_MODEL_ON_NAMED_DATA = """
from torch import nn
from fedml_dapper import platform as dapper

args = dapper.init()
dataset, none = dapper.load(args)
model = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
trainer, aggregator = dapper.DapperClientTrainer(model, args), dapper.DapperServerAggregator(model, args)
before = model[1].weight.clone()
runner = dapper.InProcessRunner(args, None, dataset, model, trainer, aggregator)
start = aggregator.server.state.weights["1.weight"]
runner.run()
after, trained = model[1].weight, aggregator.server.state.weights["1.weight"]
"""


def test_its_own_network_on_data_that_the_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_settings: Callable[..., Settings]
) -> None:
    pytest.importorskip("fedml")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program.py", "--cf", "named.yaml"])
    (tmp_path / "program.py").write_text(OWN_MODEL_ON_NAMED_DATA)
    settings = tiny_settings("model=null", "width=null", "image_size=16", "method=fedavg", "comm_round=1", "epochs=1")
    (tmp_path / "named.yaml").write_text(settings.as_yaml())
    outcome = runpy.run_path("program.py", run_name="__main__")
    assert outcome["none"] is None
    assert torch.equal(outcome["before"], outcome["start"])
    assert torch.equal(outcome["after"], outcome["trained"])
    assert not torch.equal(outcome["before"], outcome["after"])
