"""Start a prepared experiment as any FedML program starts: YAML, ``fedml.init``, ``FedMLRunner``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import fedml

from fedml_dapper.federation import SETTINGS_NAME, Experiment, RunObserver
from fedml_dapper.platform.arguments import attach, init
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import fedml_dataset
from fedml_dapper.platform.in_process import InProcessRunner
from fedml_dapper.platform.server_aggregator import DapperServerAggregator


def run_in_process(run_dir: Path, experiment: Experiment, observers: Sequence[RunObserver]) -> None:
    """Run ``experiment``, whose effective settings lie in ``run_dir``, in this process."""
    args = init(run_dir / SETTINGS_NAME)
    attach(args, experiment)
    device = fedml.device.get_device(args)
    dataset, model = fedml_dataset(experiment), experiment.method.task.backbone
    trainer, aggregator = DapperClientTrainer(model, args), DapperServerAggregator(model, args)
    runner = InProcessRunner(args, device, dataset, model, trainer, aggregator, run_dir, observers)
    fedml.FedMLRunner(args, device, dataset, model, trainer, aggregator, algorithm_flow=runner).run()
