"""The round loop in one process; FedML's hooks, or none, sit between it and the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedml_dapper.federation.checkpoint import save_weights
from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.federation.run_dir import CHECKPOINT_NAME
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
    settings = experiment.settings
    if settings.device_args.threads is not None:
        torch.set_num_threads(settings.device_args.threads)
    try:
        for observer in observers:
            observer.run_started(experiment.record())
        for round_ in range(1, settings.train_args.comm_round + 1):
            client_ids = server.round_clients()
            for observer in observers:
                observer.round_started(round_, client_ids)
            for client_id in client_ids:
                server.receive(update(server.downlink(client_id)))
            record = server.close_round()
            is_last = round_ == settings.train_args.comm_round
            if checkpoint_dir is not None and (is_last or round_ % settings.dapper_args.checkpoint_every == 0):
                save_weights(server.state.weights, checkpoint_dir / CHECKPOINT_NAME, round_)
            for observer in observers:
                observer.round_finished(record)
    finally:
        for observer in observers:
            observer.run_finished()


def simulate(experiment: Experiment, observers: Sequence[RunObserver] = ()) -> tuple[Server, list[RoundRecord]]:
    """The whole run without FedML: the server at its end, and every round's record."""
    server, clients = Server(experiment), ClientSide(experiment)
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
