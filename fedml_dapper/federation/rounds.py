"""The round loop in one process; FedML's hooks, or none, sit between it and the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.journal import RunJournal
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord, RunRecord
from fedml_dapper.federation.run_dir import open_run_dir
from fedml_dapper.federation.server import Server
from fedml_dapper.methods import Downlink, Upload


def run_rounds(
    experiment: Experiment,
    server: Server,
    update: Callable[[Downlink], Upload],
    observers: Sequence[RunObserver],
    run_dir: Path | None = None,
    resume: bool = False,
) -> None:
    """Run all rounds: each client in turn, its upload folded in and dropped before the next one trains.

    Ledger, checkpoints and global model go into ``run_dir``, made by :func:`open_run_dir`; with ``resume`` the run goes
    on after the last checkpoint there. ``observers`` hear of everything, and of the end also when a round raises or the
    user interrupts.
    """
    threads = experiment.settings.device_args.threads
    if threads is not None:
        torch.set_num_threads(threads)
    journal = RunJournal(experiment, server, observers, run_dir, resume)
    try:
        journal.started()
        while server.has_rounds_left:
            client_ids = server.round_clients()
            journal.round_opened(client_ids)
            for client_id in client_ids:
                server.receive(update(server.downlink(client_id)))
            journal.round_closed(server.close_round())
    finally:
        journal.finished()


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
    clients = ClientSide(experiment, server.memories)
    collector = _Collector()

    def report_step(client_id: int, done: int, total: int) -> None:
        for observer in observers:
            observer.client_stepped(client_id, done, total)

    clients.on_step = report_step
    run_rounds(
        experiment,
        server,
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
