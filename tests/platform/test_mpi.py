"""FedML's MPI simulation with real mpiexec: several clients per rank, errors that end the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import build_experiment, read_ledger, simulate

from .nursery import nursery

MPIEXEC = Path(sys.executable).with_name("mpiexec")
pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
SettingsFactory = Callable[..., Settings]

FAILING_PROGRAM = """
from fedml_dapper import platform as dapper

class Failing(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        if args.rank == 2:
            raise RuntimeError("the disk of rank 2 is on fire")
        super().train(train_data, device, args)

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Failing(model, args)).run()
"""

TALKATIVE_PROGRAM = """
import time
from itertools import count
from fedml.core.distributed.communication.message import Message
from fedml_dapper import platform as dapper
from fedml_dapper.platform.client_manager import DapperClientManager
from fedml_dapper.platform.round_manager import RoundManager

GREETING, greetings = "greeting", count()
train = DapperClientManager.handle_message_receive_model_from_server
hear = RoundManager.handle_message_client_status_update

def say_hello_again_and_train(client, message):
    hello, greeting = client._conversation.status(client.ONLINE_STATUS_FLAG), next(greetings)
    hello.add_params(GREETING, greeting)
    client.send_message(hello)
    while not client.queued(f"answer to {greeting}"):  # what the server sent before it is queued then too
        time.sleep(0.02)  # between looks: the transport's thread queues it, and calls nobody
    train(client, message)

def hear_and_answer(server, message):
    hear(server, message)
    if message.get(GREETING) is not None:
        server.send_message(Message(f"answer to {message.get(GREETING)}", 0, message.get_sender_id()))

DapperClientManager.handle_message_receive_model_from_server = say_hello_again_and_train
RoundManager.handle_message_client_status_update = hear_and_answer
args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model).run()
"""

UNEQUAL_PROGRAM = """
import time
from pathlib import Path
from fedml_dapper import platform as dapper

class Unequal(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        Path(f"rank_{args.rank}_trained_{self.id}").touch()
        if args.rank == 2:  # until rank 1 has trained all that it may before this one counts
            while len(list(Path().glob("rank_1_*"))) < 7:
                time.sleep(0.05)  # between looks: files do not call

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Unequal(model, args), run_dir="run").run()
"""

LATE_PROGRAM = """
import time
from pathlib import Path
from fedml_dapper import platform as dapper
from fedml_dapper.platform import server_manager
from fedml_dapper.platform.client_manager import DapperClientManager
from fedml_dapper.platform.round_manager import RoundManager

MANY = 5  # of which one rank's messages take fewer: after as many, an impatient server has left
server_manager.GOODBYE_SECONDS = 0.0  # for those that a finished run greets and does not await
has_waited, is_finished = Path("has_waited"), Path("run/global_model.safetensors").exists()
on_turn, run, turns = RoundManager.on_turn, DapperClientManager.run, []

def count_turns(server):
    on_turn(server)
    turns.append(server)
    if len(turns) == MANY:
        has_waited.touch()

def run_late(client):
    while client.rank == 2 and is_finished and not has_waited.exists():
        time.sleep(0.05)  # between looks: files do not call
    run(client)

RoundManager.on_turn, DapperClientManager.run = count_turns, run_late
args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, run_dir="run", resume=True).run()
"""


def mpirun(ranks: int, folder: Path, *command: str | Path, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """``mpiexec -n RANKS python COMMAND``; ``cold`` as a user's, else with ranks of the nursery and one thread each."""
    environment = os.environ | {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
    python = [sys.executable] if cold else nursery().python
    if cold:
        del environment["OMP_NUM_THREADS"]
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), *python, *command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.fixture
def config(tiny_settings: SettingsFactory, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny_settings("backend=MPI", "comm_round=1", "epochs=1", "threads=1").as_yaml())
    return file


@pytest.mark.nightly
def test_one_round_and_more_clients_than_ranks(config: Path, tmp_path: Path) -> None:
    finished = mpirun(3, tmp_path, "-m", "fedml_dapper", "--cf", config, "--output", tmp_path / "run")
    assert finished.returncode == 0, finished.stderr
    _, rounds = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert [[client.client for client in record.clients] for record in rounds] == [list(range(10))]
    assert finished.stdout.count("Report:") == 1  # one rank speaks


@pytest.mark.nightly
def test_a_lone_training_rank_has_all_cores(tiny_settings: SettingsFactory, config: Path, tmp_path: Path) -> None:
    config.write_text(tiny_settings("backend=MPI", "comm_round=1", "epochs=1").as_yaml())
    finished = mpirun(2, tmp_path, "-m", "fedml_dapper", "--cf", config, "--output", tmp_path / "run", cold=True)
    assert finished.returncode == 0, finished.stderr
    assert f"training with {len(os.sched_getaffinity(0))} threads" in finished.stderr


@pytest.mark.nightly
def test_a_finished_run_waits_for_ranks_that_are_late_to_hear_so(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE_PROGRAM)
    for _ in range(2):
        (tmp_path / "has_waited").unlink(missing_ok=True)
        finished = mpirun(3, tmp_path, program, "--cf", config)
        assert finished.returncode == 0, finished.stderr
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl")[1]) == 1


@pytest.mark.long
def test_an_exception_on_any_rank_ends_the_job_with_its_error(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING_PROGRAM)
    finished = mpirun(3, tmp_path, program, "--cf", config)
    assert finished.returncode != 0
    assert "the disk of rank 2 is on fire" in finished.stderr


@pytest.mark.nightly
def test_a_rank_that_says_twice_that_it_is_there_misses_no_client(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "talkative.py"
    program.write_text(TALKATIVE_PROGRAM)
    finished = mpirun(3, tmp_path, program, "--cf", config)
    assert finished.returncode == 0, finished.stderr
    [ledger] = tmp_path.glob("*/ledger.jsonl")
    _, rounds = read_ledger(ledger)
    assert [[client.client for client in record.clients] for record in rounds] == [list(range(10))]


@pytest.mark.nightly
def test_a_slow_rank_trains_fewer_clients_and_the_model_is_the_same(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "unequal.py"
    program.write_text(UNEQUAL_PROGRAM)
    finished = mpirun(3, tmp_path, program, "--cf", config)
    assert finished.returncode == 0, finished.stderr
    assert len(list(tmp_path.glob("rank_1_*"))) >= 7
    found = load_file(tmp_path / "run" / "global_model.safetensors")
    server, _ = simulate(build_experiment(load_settings(config)))
    assert all(torch.equal(found[name], tensor) for name, tensor in server.state.weights.items())


@pytest.mark.nightly
def test_a_single_process_is_told_how_to_start(config: Path, tmp_path: Path) -> None:
    finished = mpirun(1, tmp_path, "-m", "fedml_dapper", "--cf", config)
    assert finished.returncode == 2
    assert "start it with run/mpi.sh CONFIG -n 3" in finished.stderr
