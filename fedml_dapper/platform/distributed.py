"""Runner of server, edges and clients in processes of their own: FedML's MPI simulation and its cross-silo runs."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from fedml_dapper.config import EdgeArgs
from fedml_dapper.device.silo_in_sums import SiloInSums
from fedml_dapper.errors import DapperError, complaint
from fedml_dapper.federation import (
    Agreement,
    Codec,
    EdgeCodec,
    RunJournal,
    SumCodec,
)
from fedml_dapper.federation.workers.parallelism import available_cores
from fedml_dapper.platform.algorithm_flow import AlgorithmFlow
from fedml_dapper.platform.client_manager import DapperClientManager
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.edge_manager import DapperEdgeManager
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.server_manager import DapperServerManager
from fedml_dapper.process.interruption import GOING_ON, INTERRUPTED, reraising_interruption

LOGGER = logging.getLogger(__name__)
FORWARDING_SECONDS = 1.0
"""Pause before an MPI job is aborted, in which mpiexec passes on what a rank wrote."""
SERVER_FIRST_SECONDS = 5.0
"""Pause of clients' ranks after Ctrl-C, which reaches all ranks: the first to abort ends them all, and the server needs
time to write its files."""


class DistributedRunner(AlgorithmFlow):
    """Runner of this process's part in a run of several processes; hand it to ``FedMLRunner`` as ``algorithm_flow``.

    Rank 0 is the server, edges serve their silos, all others train. The server alone calls ``observers`` and writes
    into ``run_dir``, and the trained global model is put into its ``model``. For the arguments see
    :class:`AlgorithmFlow`.
    """

    def _prepare(self) -> None:
        layout = self.experiment.method.problem.layout
        agreement = Agreement.of(self.experiment)
        self._codec = Codec(layout, agreement)
        self._edge_codec = EdgeCodec(layout, agreement)
        self._sum_codec = SumCodec(self._codec, agreement)

    def run(self) -> None:
        """Run until the server has ended the last round. Under MPI an error on any rank ends the whole job."""
        comm = vars(self._args).get("comm")
        neighbours = 0 if comm is None else _trainers_here(comm)  # on all ranks, also those that need not know
        torch.set_num_threads(self._num_threads(neighbours))
        try:
            with reraising_interruption():
                self._take_part(comm)
        except BaseException as error:
            if comm is None:
                raise
            interrupted = isinstance(error, KeyboardInterrupt)
            sys.stderr.write(f"{_message_of(f'rank {self._args.rank}', error)}\n")
            sys.stderr.flush()
            time.sleep(SERVER_FIRST_SECONDS if interrupted and self._args.rank else FORWARDING_SECONDS)
            comm.Abort(INTERRUPTED if interrupted else 1)

    def _take_part(self, comm: Any) -> None:
        edge = self.experiment.settings.comm_args.edge(int(self._args.rank))
        if self._args.rank == 0:
            self._serve(comm)
        elif edge is not None:
            self._serve_silos(edge)
        else:
            self._train(comm)

    def _serve(self, comm: Any) -> None:
        aggregator = self._server_aggregator or DapperServerAggregator(self._model, self._args)
        run_dir, observers = self._open()
        journal = RunJournal(self.experiment, aggregator.server, observers, run_dir, self._resume)
        callers = self.experiment.settings.comm_args.callers_of_server(self._num_processes(comm))
        self._args.client_id_list = json.dumps(list(callers))
        DapperServerManager(
            self._args,
            aggregator,
            self.experiment,
            self._codec,
            self._edge_codec,
            self._sum_codec,
            journal,
            comm,
            callers,
        ).run()
        self._close(run_dir, aggregator.server.whole_model())

    def _serve_silos(self, edge: EdgeArgs) -> None:
        self._args.client_id_list = json.dumps(list(edge.silos))
        DapperEdgeManager(self._args, self.experiment, self._codec, self._edge_codec, edge).run()

    def _train(self, comm: Any) -> None:
        trainer = self._client_trainer or DapperClientTrainer(self._model, self._args)
        rank = int(self._args.rank)
        self._args.client_id_list = json.dumps([rank])
        self._args.scenario = "horizontal"
        LOGGER.info("training with %d threads", torch.get_num_threads())
        DapperClientManager(
            self._args,
            self._device,
            self._dataset,
            trainer,
            self.experiment,
            self._codec,
            self._sums(rank),
            comm,
            rank,
            self._num_processes(comm),
            self._silos_place,
        ).run()

    def _sums(self, rank: int) -> SiloInSums | None:
        if not self.experiment.sums_in_secret:
            return None
        return SiloInSums(self.experiment, self._sum_codec, rank, self._silos_place)

    @property
    def _silos_place(self) -> Path:
        """The folder in which a silo keeps what it needs after a restart."""
        return Path(self.run_dir or self.experiment.settings.dapper_args.output_dir)

    def _num_threads(self, neighbours: int) -> int:
        """Return the number of threads that the experiment or the environment sets, or a good one under MPI.

        Under MPI torch by itself takes one thread. The server works while the others wait, so it takes all cores; each
        of the ``neighbours`` that train on this machine takes an equal share of them.
        """
        chosen = self.experiment.settings.device_args.threads
        if chosen is not None:
            return chosen
        if vars(self._args).get("comm") is None or "OMP_NUM_THREADS" in os.environ:
            return torch.get_num_threads()
        cores = available_cores()
        return cores if self._args.rank == 0 else max(1, cores // neighbours)

    def _num_processes(self, comm: Any) -> int:
        if comm is not None:
            return int(comm.Get_size()) - 1
        return self.experiment.settings.train_args.client_num_in_total


def _message_of(who: str, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return complaint(who, GOING_ON)
    return complaint(who, str(error)) if isinstance(error, DapperError) else f"{who}: {traceback.format_exc()}"


def _trainers_here(comm: Any) -> int:
    """Return how many ranks of this machine train; a collective operation, which all ranks have to call."""
    from mpi4py import MPI  # noqa: PLC0415  # installed where runs use MPI

    return int(comm.Split_type(MPI.COMM_TYPE_SHARED).allreduce(int(comm.Get_rank() > 0)))
