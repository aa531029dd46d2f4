"""Start of a prepared experiment the way a FedML program starts: YAML, ``fedml.init``, ``FedMLRunner``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedml
from fedml.arguments import add_args

from fedml_dapper.federation import Experiment, RunObserver
from fedml_dapper.platform.arguments import start
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import fedml_dataset
from fedml_dapper.platform.program import attach
from fedml_dapper.platform.runner import runner_for
from fedml_dapper.platform.server_aggregator import DapperServerAggregator


def run_federation(
    config_files: Sequence[Path],
    sections: Mapping[str, Any],
    experiment: Experiment,
    rank: int = 0,
    run_dir: Path | None = None,
    observers: Sequence[RunObserver] = (),
    resume: bool = False,
) -> None:
    """Run this process's part of an experiment: all of it, or the part of ``rank`` among several processes.

    Args:
        config_files: The experiment's files.
        sections: Content of the files.
        experiment: What is run.
        rank: 0 for the server, or a simulation in one process.
        run_dir: Folder of the run, or for a silo the one in which it writes down what it has signed.
        observers: Called by the server at every event.
        resume: Whether the server goes on with the run in ``run_dir``.
    """
    command_line = add_args()
    command_line.yaml_config_file = str(config_files[0])
    command_line.rank = rank
    command_line.role = "server" if rank == 0 else "client"
    args = start(experiment.settings, sections, command_line)
    attach(args, experiment)
    device = experiment.device
    model = experiment.method.problem.backbone
    dataset = fedml_dataset(experiment.division, experiment.num_classes)
    trainer: DapperClientTrainer | None = None
    aggregator: DapperServerAggregator | None = None
    if experiment.settings.comm_args.backend == "sp":
        trainer = DapperClientTrainer(model, args)
        aggregator = DapperServerAggregator(model, args)
    flow = runner_for(args, device, dataset, model, trainer, aggregator, run_dir, observers, resume)
    fedml.FedMLRunner(args, device, dataset, model, trainer, aggregator, algorithm_flow=flow).run()
