"""The round loop in one process; FedML's hooks, or none, sit between it and the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.journal import RunJournal
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.federation.server import Server
from fedml_dapper.methods import Downlink, Upload


def run_rounds(
    experiment: Experiment,
    server: Server,
    update: Callable[[Downlink], Upload],
    observers: Sequence[RunObserver],
    checkpoint_dir: Path | None = None,
) -> None:
    """Run all rounds: each client in turn, its upload folded in and dropped before the next one trains.

    ``observers`` hear of everything, and of the end also when a round raises or the user interrupts.
    """
    threads = experiment.settings.device_args.threads
    if threads is not None:
        torch.set_num_threads(threads)
    journal = RunJournal(experiment, server, observers, checkpoint_dir)
    try:
        journal.started()
        for _ in range(experiment.settings.train_args.comm_round):
            client_ids = server.round_clients()
            journal.round_opened(client_ids)
            for client_id in client_ids:
                server.receive(update(server.downlink(client_id)))
            journal.round_closed(server.close_round())
    finally:
        journal.finished()


def simulate(experiment: Experiment, observers: Sequence[RunObserver] = ()) -> tuple[Server, list[RoundRecord]]:
    """The whole run without FedML: the server at its end, and every round's record."""
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
    )
    return server, collector.records


class _Collector(RunObserver):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def round_finished(self, record: RoundRecord) -> None:
        self.records.append(record)
