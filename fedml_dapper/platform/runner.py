"""Choice of the runner that a FedML program's ``args`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from torch import nn

from fedml_dapper.federation import RunObserver
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import FedMLDataset
from fedml_dapper.platform.distributed import DistributedRunner
from fedml_dapper.platform.in_process import InProcessRunner
from fedml_dapper.platform.server_aggregator import DapperServerAggregator


def runner_for(
    args: Arguments,
    device: Any,
    dataset: FedMLDataset | Sequence[Any],
    model: nn.Module,
    client_trainer: DapperClientTrainer | None = None,
    server_aggregator: DapperServerAggregator | None = None,
    run_dir: Path | str | None = None,
    observers: Sequence[RunObserver] = (),
    resume: bool = False,
) -> InProcessRunner | DistributedRunner:
    """Return the runner for ``comm_args.backend``, to be handed to ``FedMLRunner`` as ``algorithm_flow``.

    It is an :class:`InProcessRunner` for ``sp``, and a :class:`DistributedRunner` for all other backends, where this is
    one process of several. Both classes take the same arguments.
    """
    kind = InProcessRunner if args.backend == "sp" else DistributedRunner
    return kind(args, device, dataset, model, client_trainer, server_aggregator, run_dir, observers, resume)
