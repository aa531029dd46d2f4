"""This package's simulation, as ``fedml-dapper run`` does it: with ledger and checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from benchmarks.peers.work import CLASSES, MODEL, SEED, Diary, Work, given
from fedml_dapper.config import Settings, check
from fedml_dapper.datasets import Suite
from fedml_dapper.federation import RoundRecord, RunObserver, build_experiment, simulate


def load(clients: int, images: int) -> dict[str, tuple[TensorDataset, TensorDataset]]:
    """The pictures of all clients, one after another, and as few as there can be to test with."""
    work = Work(clients, images, width=0, epochs=0, batch=0, rounds=0)
    pictures, classes = (torch.cat(parts) for parts in zip(*map(work.pictures, range(clients)), strict=True))
    return {"pictures": (TensorDataset(pictures, classes), TensorDataset(pictures[:CLASSES], classes[:CLASSES]))}


def deal(suite: Suite, num_clients: int, _seed: int) -> list[tuple[str, Iterable[int]]]:
    """Give each client its own pictures."""
    [domain] = suite.domains
    share = len(domain.train) // num_clients
    return [(domain.name, range(client * share, (client + 1) * share)) for client in range(num_clients)]


class _Noting(RunObserver):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def round_finished(self, record: RoundRecord) -> None:
        self._diary.round_ended()


def settings(work: Work) -> Settings:
    """The work as an experiment file has it."""
    on_gpu = work.device == "cuda"
    code = Path(__file__)
    values = {
        "common_args": {"training_type": "simulation", "random_seed": SEED},
        "comm_args": {"backend": "sp"},
        "data_args": {
            "dataset": f"{code}:load",
            "arguments": {"clients": work.clients, "images": work.images},
            "partition": f"{code}:deal",
            "classes": CLASSES,
        },
        "model_args": {"model": MODEL, "width": work.width},
        "train_args": {
            "client_num_in_total": work.clients,
            "client_num_per_round": work.clients,
            "comm_round": work.rounds,
            "epochs": work.epochs,
            "batch_size": work.batch,
            "learning_rate": work.rate,
            "momentum": 0.0,
            "weight_decay": 0.0,
        },
        "validation_args": {"frequency_of_the_test": work.rounds + 1},
        "device_args": {"using_gpu": on_gpu, "threads": 1, **({} if on_gpu else {"workers": work.processes})},
        "dapper_args": {"method": "fedavg"},
    }
    return check(Settings, values, where="benchmarks.peers")


def main() -> None:
    work, notes = given()
    diary = Diary(notes)
    diary.count_steps()
    experiment = build_experiment(settings(work))
    with tempfile.TemporaryDirectory() as folder:
        server, _ = simulate(experiment, [_Noting(diary)], Path(folder) / "run")
    diary.keep(experiment.method.global_model(server.state))


if __name__ == "__main__":
    main()
