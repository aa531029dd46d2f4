"""The round loop of a simulation in one process, with FedML's hooks between it and the clients or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.run_folder.journal import RunJournal
from fedml_dapper.federation.run_folder.records import RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.run_dir import open_run_dir
from fedml_dapper.federation.server import Server
from fedml_dapper.federation.workers.training import local_training
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.process.garbage import lasting_objects_left_alone


def run_rounds(
    experiment: Experiment,
    server: Server,
    clients: ClientSide,
    update: Callable[[Downlink], Upload],
    observers: Sequence[RunObserver],
    run_dir: Path | None = None,
    resume: bool = False,
) -> None:
    """Run all rounds of an experiment in this process, or in workers that it forks.

    Args:
        experiment: What is run.
        server: Chooses clients and folds each upload as it comes.
        clients: Keeps the clients' memories, and calls back after each optimizer step.
        update: Trains one client of ``clients``.
        observers: Called at every event, and at the run's end also when a round raises or the user interrupts.
        run_dir: Folder for ledger, checkpoints and global model, made by :func:`open_run_dir`.
        resume: Whether to go on after the last checkpoint in ``run_dir``.
    """

    def report_step(client_id: int, done: int, total: int) -> None:
        for observer in observers:
            observer.client_stepped(client_id, done, total)

    clients.on_step = report_step
    clients.memories = server.memories
    journal = RunJournal(experiment, server, observers, run_dir, resume)
    with _threads_of(experiment), lasting_objects_left_alone() as leave_alone:
        try:
            with local_training(experiment, server, clients, update) as train:
                journal.started()
                while server.has_rounds_left:
                    client_ids = server.round_clients()
                    journal.round_opened(client_ids)
                    for upload in train(client_ids):
                        server.receive(upload)
                    journal.round_closed(server.close_round())
                    leave_alone()
        finally:
            journal.finished()


@contextmanager
def _threads_of(experiment: Experiment) -> Iterator[None]:
    """Give torch the planned number of threads; restore the former one afterwards, unless the settings ask for it."""
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
    """Run an experiment from beginning to end in this process, without FedML.

    Args:
        experiment: What is run.
        observers: Called at every event.
        run_dir: Folder for the run's files; without one nothing is written.
        resume: Whether to go on with what ``run_dir`` holds, if anything.

    Returns:
        The server after the last round, and the records of all rounds.
    """
    if run_dir is not None:
        run_dir = open_run_dir(experiment, run_dir, resume)
    server = Server(experiment)
    clients = ClientSide(experiment)
    collector = _RecordCollector()
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


class _RecordCollector(RunObserver):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        self.records = list(rounds)

    def round_finished(self, record: RoundRecord) -> None:
        self.records.append(record)
