"""Local training of a round's clients, in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.client_queue import cost_of_rounds
from fedml_dapper.federation.server import Server
from fedml_dapper.federation.workers.pool import WorkerPool
from fedml_dapper.methods import Downlink, Upload

Training = Callable[[Sequence[int]], Iterator[Upload]]
"""Function that trains the open round's clients and yields their uploads in the order of the client ids."""


@contextmanager
def local_training(
    experiment: Experiment, server: Server, clients: ClientSide, update: Callable[[Downlink], Upload]
) -> Iterator[Training]:
    """Provide the training of clients by ``update`` as ``experiment`` plans it.

    It runs in this process, or in workers that end with the block.
    """
    if experiment.workers.count == 1:
        yield lambda client_ids: (update(server.downlink(client_id)) for client_id in client_ids)
        return
    assert experiment.workers.threads is not None
    cost = cost_of_rounds(experiment, lambda client_id: server.state.profiles[client_id])
    count = experiment.workers.count
    threads = experiment.workers.threads
    with WorkerPool(count, threads, server, clients, update, cost) as pool:
        yield pool.uploads
