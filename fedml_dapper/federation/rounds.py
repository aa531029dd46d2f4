"""The round loop in one process; FedML's hooks, or none, sit between it and the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.journal import RunJournal
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord, RunRecord
from fedml_dapper.federation.run_dir import open_run_dir
from fedml_dapper.federation.server import Server
from fedml_dapper.federation.workers.training import local_training
from fedml_dapper.methods import Downlink, Upload


def run_rounds(
    experiment: Experiment,
    server: Server,
    clients: ClientSide,
    update: Callable[[Downlink], Upload],
    observers: Sequence[RunObserver],
    run_dir: Path | None = None,
    resume: bool = False,
) -> None:
    """Run all rounds: ``update`` trains the clients of ``clients``, one after another or in workers, and each upload
    is folded in and dropped.

    Ledger, checkpoints and global model go into ``run_dir``, made by :func:`open_run_dir`; with ``resume`` the run goes
    on after the last checkpoint there. ``observers`` hear of everything, and of the end also when a round raises or the
    user interrupts.
    """

    def report_step(client_id: int, done: int, total: int) -> None:
        for observer in observers:
            observer.client_stepped(client_id, done, total)

    clients.on_step = report_step
    clients.memories = server.memories
    journal = RunJournal(experiment, server, observers, run_dir, resume)
    with _threads_of(experiment):
        try:
            with local_training(experiment, server, clients, update) as train:
                journal.started()
                while server.has_rounds_left:
                    client_ids = server.round_clients()
                    journal.round_opened(client_ids)
                    for upload in train(client_ids):
                        server.receive(upload)
                    journal.round_closed(server.close_round())
        finally:
            journal.finished()


@contextmanager
def _threads_of(experiment: Experiment) -> Iterator[None]:
    """Torch has as many threads as are planned, and where nobody asked for a number, afterwards those from before."""
    before = torch.get_num_threads()
    if experiment.workers.threads is not None:
        torch.set_num_threads(experiment.workers.threads)
    try:
        yield
    finally:
        if experiment.settings.device_args.threads is None:
            torch.set_num_threads(before)


def simulate(
    experiment: Experiment,
    observers: Sequence[RunObserver] = (),
    run_dir: Path | str | None = None,
    resume: bool = False,
) -> tuple[Server, list[RoundRecord]]:
    """The whole run without FedML: the server at its end, and every round's record.

    Nothing is written without a ``run_dir``; ``resume`` goes on with what it holds, if anything.
    """
    if run_dir is not None:
        run_dir = open_run_dir(experiment, run_dir, resume)
    server = Server(experiment)
    clients = ClientSide(experiment)
    collector = _Collector()
    run_rounds(
        experiment,
        server,
        clients,
        lambda downlink: clients.update(downlink, experiment.clients[downlink.client_id]),
        [*observers, collector],
        run_dir,
        resume,
    )
    return server, collector.records


class _Collector(RunObserver):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        self.records = list(rounds)

    def round_finished(self, record: RoundRecord) -> None:
        self.records.append(record)
