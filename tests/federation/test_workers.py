"""Clients side by side give what clients one after another give, whatever happens to their processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import DapperError
from fedml_dapper.federation import Experiment, RoundRecord, RunObserver, Server, build_experiment, simulate
from fedml_dapper.federation.workers import parallelism
from fedml_dapper.federation.workers.messages import Done, SharedModel
from fedml_dapper.federation.workers.parallelism import WorkerPlan
from fedml_dapper.methods import Downlink, Memory, TrainingMetrics, Upload
from fedml_dapper.process.interruption import GOING_ON, INTERRUPTED
from fedml_dapper.process.profiling import Profiler
from tests.brought import brought, load_of
from tests.federation.interruptions import (
    FEW,
    SECONDS,
    Ended,
    assert_same_end,
    assert_same_held,
    assert_same_memory,
    assert_same_tensors,
    resumed,
    run_until,
)
from tests.federation.undisturbed import UndisturbedRuns
from tests.grids import ON_ANY_NETWORK, first_and_drawn, sampled
from tests.waiting import wait_until

SettingsFactory = Callable[..., Settings]
ONE_ROUND = (*FEW, "comm_round=1", "epochs=1")
DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
EXAMPLES = Path(__file__).parents[2] / "examples"
Run = tuple[Server, list[RoundRecord]]


def with_workers(experiment: Experiment, count: int) -> Experiment:
    return replace(experiment, workers=WorkerPlan(count, threads=1))


def one_after_another_and_side_by_side(experiment: Experiment, *observers: RunObserver) -> tuple[Run, Run]:
    """``observers`` are the latter's."""
    return simulate(with_workers(experiment, 1)), simulate(with_workers(experiment, 2), observers)


def assert_same_run(first: Run, second: Run) -> None:
    (one, records), (other, others) = first, second
    assert_same_tensors(one.state.weights, other.state.weights)
    assert_same_memory(one.state.memory, other.state.memory)
    assert list(one.memories) == list(other.memories)
    for client_id, memory in one.memories.items():
        assert_same_memory(memory, other.memories[client_id])
    assert [without_seconds(record) for record in records] == [without_seconds(record) for record in others]
    assert multiprocessing.active_children() == []


def without_seconds(record: RoundRecord) -> str:
    return SECONDS.sub("", record.model_dump_json())


ORIGINAL = Server.downlink


class Steps(RunObserver):
    """The process of each client, as its steps are heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, int]] = []
        self.num_workers = 0

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        self.heard.append((client_id, done, total))
        self.num_workers = max(self.num_workers, len(multiprocessing.active_children()))


class Killer(RunObserver):
    """Kills all workers at a client's step in ``round_``, so many times."""

    def __init__(self, round_: int, times: int) -> None:
        self.round, self.left = round_, times
        self._now = 0

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._now = round_

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        if self._now == self.round and self.left:
            self.left -= 1
            for worker in multiprocessing.active_children():
                worker.kill()
            for worker in multiprocessing.active_children():
                worker.join()


@pytest.mark.long
@pytest.mark.parametrize("method", sampled(ON_ANY_NETWORK))
def test_the_same_bits_for_every_method(undisturbed: UndisturbedRuns, tmp_path: Path, method: str) -> None:
    whole = undisturbed(method)
    server, _ = simulate(with_workers(build_experiment(whole.settings), 2), run_dir=tmp_path)
    side_by_side = Ended(server.checkpoint(), tmp_path)
    assert_same_held(side_by_side.held, whole.held)
    assert side_by_side.rounds == whole.rounds
    assert multiprocessing.active_children() == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "overrides",
    [
        ("method=ditto", "personal=trained"),
        ("method=dapperfl", "personal_layers=norms", "uplink=int8"),
        ("method=heterofl", "assignment=my_levels.py:deal"),
    ],
    ids=["own_models", "norms_at_home_and_int8", "levels_that_change"],
)
def test_the_same_bits_whatever_else_a_round_does(
    tiny_settings: SettingsFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    (tmp_path / "my_levels.py").write_text(
        "def deal(fleet):\n    return [1 + (fleet.round + device.client_id) % 5 for device in fleet.devices]\n"
    )
    monkeypatch.chdir(tmp_path)
    experiment = build_experiment(tiny_settings(*FEW, "comm_round=2", *overrides))
    assert_same_run(*one_after_another_and_side_by_side(experiment))


def test_steps_are_heard_here_of_all_clients(tiny_settings: SettingsFactory) -> None:
    steps = Steps()
    _, (_, [record]) = one_after_another_and_side_by_side(build_experiment(tiny_settings(*ONE_ROUND)), steps)
    assert steps.num_workers == 2
    for client in record.clients:
        mine = [(done, total) for client_id, done, total in steps.heard if client_id == client.client]
        assert mine[0] == (1, client.steps)
        assert mine[-1] == (client.steps, client.steps)
        assert mine == sorted(mine)


@pytest.mark.parametrize(("ahead", "first"), [(2, [2, 3]), (1, [0, 1])])
def test_what_is_expensive_begins_first_but_not_far_ahead(
    tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, ahead: int, first: list[int]
) -> None:
    begun: list[int] = []

    def downlink(server: Server, client_id: int) -> Downlink:
        begun.append(client_id)
        return ORIGINAL(server, client_id)

    monkeypatch.setattr("fedml_dapper.federation.round.client_queue.AHEAD", ahead)
    monkeypatch.setattr(Server, "downlink", downlink)
    settings = tiny_settings(*ONE_ROUND, "client_num_per_round=4", "method=heterofl", "assignment=[5, 4, 2, 1]")
    simulate(with_workers(build_experiment(settings), 2))
    assert sorted(begun) == [0, 1, 2, 3]
    assert sorted(begun[:2]) == first


@pytest.mark.parametrize("method", first_and_drawn("scaffold", "dapperfl"))
def test_a_killed_workers_client_is_trained_again(tiny_settings: SettingsFactory, method: str) -> None:
    killer = Killer(round_=2, times=2)  # then clients have something to remember
    experiment = build_experiment(tiny_settings(*FEW, f"method={method}", "comm_round=2"))
    assert_same_run(*one_after_another_and_side_by_side(experiment, killer))
    assert killer.left == 0


def test_a_client_whose_workers_die_again_and_again_ends_the_run(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    (tmp_path / "my_method.py").write_text(SLEEPER)  # or a client may be done before its first step is heard here
    method = f"method={tmp_path}/my_method.py:Sleeper"
    experiment = with_workers(build_experiment(tiny_settings(*ONE_ROUND, method)), 2)
    with pytest.raises(DapperError, match=r"client \d: 3 processes .* by SIGKILL; .* memory ran out"):
        simulate(experiment, [Killer(round_=1, times=100)])
    assert multiprocessing.active_children() == []


MY_METHOD = """
from fedml_dapper.errors import DapperError
from fedml_dapper.methods import FedAvg

class Odd(DapperError):  # which no other process can make again
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")

class Mine(FedAvg):
    name = "mine"

    def local_update(self, client, downlink):
        raise ERROR
"""


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("ValueError('no such thing')", DapperError, r"client \d, round 1: .* `mine` fails: ValueError: no such thing"),
        ("Odd(1, 2)", RuntimeError, "Odd: 1 and 2"),
    ],
)
def test_an_error_comes_back_with_the_place_it_was_raised_at(
    tiny_settings: SettingsFactory, tmp_path: Path, error: str, kind: type[Exception], message: str
) -> None:
    (tmp_path / "my_method.py").write_text(MY_METHOD.replace("ERROR", error))
    experiment = build_experiment(tiny_settings(*ONE_ROUND, f"method={tmp_path}/my_method.py:Mine"))
    with pytest.raises(kind, match=message) as caught:
        simulate(with_workers(experiment, 2))
    shown = "".join(traceback.format_exception(caught.value))
    assert f"raise {error}" in shown[shown.rindex("Where a client's process raised it") :]
    assert multiprocessing.active_children() == []


@pytest.mark.nightly
def test_a_run_goes_on_with_another_number_of_workers(undisturbed: UndisturbedRuns, tmp_path: Path) -> None:
    whole = undisturbed("scaffold", "threads=1")
    device_args = whole.settings.device_args.model_copy(update={"workers": 2})
    run_until(2, whole.settings.model_copy(update={"device_args": device_args}), tmp_path / "parts")
    assert multiprocessing.active_children() == []
    other, _ = resumed(whole.settings, tmp_path / "parts")
    ledger = tmp_path / "parts" / "ledger.jsonl"
    text = ledger.read_text()
    assert '"workers":2' in text
    ledger.write_text(text.replace('"workers":2', '"workers":1'))  # the one thing that tells
    assert_same_end(whole, other, tmp_path / "parts")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "example", ["own_model/experiment.yaml", "own_data/experiment.yaml", "segmentation/shapes.yaml"]
)
def test_networks_data_and_tasks_of_ones_own(example: str, tmp_path: Path) -> None:
    small = ("comm_round=1", "epochs=1", "threads=1", "workers=2", f"output_dir={tmp_path}")
    experiment = build_experiment(load_settings([EXAMPLES / example], small))
    assert experiment.workers == WorkerPlan(2, threads=1)
    assert_same_run(*one_after_another_and_side_by_side(experiment))


HOLDING = """
import numpy as np
from torch.utils.data import Dataset

class Noise:
    def __init__(self): self.drawn = np.random.default_rng(0)
    def apply(self, values): return values

class Lazy:
    def __init__(self): self.file = open(__file__)
    def __getstate__(self): return {}

class Holding(Dataset):
    transform = staticmethod(lambda values: values)
    def __init__(self):
        self.inner = {"held": HELD}
        self.also = lambda index: index
    def __len__(self): return 20
    def __getitem__(self, index): return np.full((3, 32, 32), index, np.float32), index % 2

def load(): return {"a": (Holding(), Holding())}
"""


@pytest.mark.parametrize(
    ("held", "tied"),
    [
        ("open(__file__)", "TextIOWrapper"),
        ("np.random.default_rng(0)", "a Generator of its own"),
        ("Noise().apply", "a Generator of its own"),
        ("(lambda drawn: lambda index: drawn.random())(np.random.default_rng(0))", "a Generator of its own"),
        ("Lazy()", "an open file"),
        ("self.__getitem__", None),
        ("np.zeros(3)", None),
    ],
)
def test_data_that_hold_something_open_stay_in_one_process(tmp_path: Path, held: str, tied: str | None) -> None:
    (tmp_path / "my_data.py").write_text(HOLDING.replace("HELD", held))
    experiment = build_experiment(
        load_settings(
            [DIGITS],
            [
                f"dataset={tmp_path}/my_data.py:load", "client_num_in_total=2", "client_num_per_round=2", "workers=2",
                "method=fedavg", "model=lenet5", "width=6",
            ],
        )
    )  # fmt: skip
    assert experiment.workers.count == (2 if tied is None else 1)
    note = "clients train one after another: Holding holds something that only one process can use: "
    assert [tied in each for each in experiment.notes if tied is not None and each.startswith(note)] == [True] * bool(
        tied
    )


@pytest.mark.parametrize(
    ("overrides", "cores", "omp", "expected"),
    [
        ((), 8, None, (8, 1)),
        ((), 16, None, (10, 1)),
        ((), 1, None, (1, 3)),
        ((), 8, "4", (2, 4)),
        ((), 8, " 4,2", (2, 4)),
        ((), 8, "", (8, 1)),
        ((), 8, "all", (8, 1)),
        (("threads=2",), 8, "4", (4, 2)),
        (("threads=8",), 8, None, (1, 8)),
        (("workers=3",), 8, None, (3, 1)),
        (("workers=1",), 8, None, (1, 3)),
        (("workers=1", "threads=2"), 8, None, (1, 2)),
        (("backend=MPI",), 8, None, (1, None)),
    ],
)
def test_as_many_workers_as_cores_have_room_for(
    tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], cores: int,
    omp: str | None, expected: tuple[int, int | None],
) -> None:  # fmt: skip
    monkeypatch.setattr(parallelism, "available_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    ten = ("client_num_in_total=10", "client_num_per_round=10")
    experiment = build_experiment(tiny_settings("width=4", "image_size=8", "method=fedavg", *ten))
    settings = tiny_settings("workers=auto", *ten, *overrides)
    found = parallelism.plan_workers(settings, experiment.division, experiment.method.problem.backbone)
    assert (found.count, found.threads) == expected


def test_parts_of_workers_are_added_up(tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # in workers too, which are forks
    experiment = with_workers(build_experiment(tiny_settings(*ONE_ROUND)), 2)
    profiler, started = Profiler(experiment.device), time.perf_counter()
    with profiler.active():
        simulate(experiment)
    assert profiler.seconds["forward/backward"] > 0
    worked = time.perf_counter() - started + profiler.elsewhere
    assert sum(profiler.seconds.values()) < worked


def test_tensors_travel_as_they_lie_and_the_global_model_not_at_all() -> None:
    weights = {"a": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), "b": torch.tensor(3)}
    model = SharedModel({name: torch.zeros_like(tensor) for name, tensor in weights.items()})
    model.show(weights)
    extras = {
        "cut": torch.randn(5, 6)[:, ::2], "nothing": torch.zeros(0, 3), "nan": torch.tensor([float("nan")]),
        "half": torch.randn(3).bfloat16(), "expanded": torch.randn(1).expand(4), "bool": torch.tensor([True, False]),
    }  # fmt: skip
    upload = Upload(1, 0, 9, weights, TrainingMetrics(0.5, 1, 0.1), extras=extras)
    packed = bytes(model.pack(Done(upload, Memory(values={"a": [1]}), 1.0)))
    assert weights["a"].numpy().tobytes("A") not in packed
    held = sys.getrefcount(packed)
    found = model.unpack(packed)
    assert isinstance(found, Done)
    assert_same_tensors({**weights, **extras}, {**found.upload.weights, **found.upload.extras})
    for name, tensor in {**weights, **extras}.items():
        assert tensor.stride() == {**found.upload.weights, **found.upload.extras}[name].stride()
    assert sys.getrefcount(packed) == held  # a tensor that is kept does not keep the message
    weights["a"] = weights["a"] + 1
    model.show(weights)
    assert torch.equal(found.upload.weights["a"], weights["a"])  # it is the shown one


SLEEPER = """
import time
from fedml_dapper.methods import FedAvg

class Sleeper(FedAvg):
    name = "sleeper"

    def local_update(self, client, downlink):
        client.on_step(1, 2)
        time.sleep(300)  # until it is ended
"""
PROGRAM = """
import multiprocessing, sys, time
from fedml_dapper.process import interruption

class Tell:
    told = False
    def __getattr__(self, name): return lambda *args: None
    def client_stepped(self, client_id, done, total):
        if not self.told:
            self.told = True
            print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)

with interruption.ending_in_order("it"):
    from fedml_dapper.config import load_settings
    from fedml_dapper.federation import build_experiment, simulate
    experiment = build_experiment(load_settings([sys.argv[1]]))
    simulate(experiment, [Tell()], sys.argv[2])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        (signal.SIGINT, True, INTERRUPTED),
        pytest.param(signal.SIGTERM, False, INTERRUPTED, marks=pytest.mark.nightly),
        (signal.SIGKILL, False, -signal.SIGKILL),
    ],
)
def test_workers_end_with_their_parent(
    tiny_settings: SettingsFactory, tmp_path: Path, number: signal.Signals, to_all: bool, code: int
) -> None:
    file = tmp_path / "settings.yaml"
    (tmp_path / "my_method.py").write_text(SLEEPER)
    method = f"method={tmp_path}/my_method.py:Sleeper"
    file.write_text(tiny_settings(*FEW, method, "workers=2", "threads=1").as_yaml())
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", PROGRAM, file, tmp_path / "run"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    assert all(map(is_alive, workers))
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, stderr = process.communicate(timeout=50)  # it would sleep for longer
    assert process.returncode == code
    assert stderr == ("" if code < 0 else f"it: {GOING_ON}\n")
    wait_until(lambda: not any(map(is_alive, workers)), 50)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


SWEEP = """
import multiprocessing
import fedml_dapper
from fedml_dapper.federation import read_ledger

def one(rate):
    run = fedml_dapper.run("experiment.yaml", workers=2, learning_rate=rate, progress=False, output=f"run_{rate}")
    return run.summary.rounds, read_ledger(run.folder / "ledger.jsonl")[0].notes

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [(rounds, notes)] = pool.map(one, [0.01])
    assert rounds == 1
    print(*notes)
"""


@pytest.mark.nightly
def test_a_pools_process_trains_clients_one_after_another_and_says_so(tmp_path: Path) -> None:
    brought(tmp_path, load_of())
    (tmp_path / "sweep.py").write_text(SWEEP)
    done = subprocess.run(
        [sys.executable, "sweep.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "clients train one after another: this process is a daemon, as those of multiprocessing.Pool" in done.stdout
