"""Choice of the runner that a FedML program's ``args`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from torch import nn

from fedml_dapper.federation import RunObserver
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.cross_device_server import CrossDeviceServer
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
) -> InProcessRunner | DistributedRunner | CrossDeviceServer:
    """Return the runner that the experiment file asks for, to be handed to ``FedMLRunner`` as ``algorithm_flow``.

    It is an :class:`InProcessRunner` for ``comm_args.backend`` ``sp``, a :class:`CrossDeviceServer` for
    ``training_type: cross_device``, and else a :class:`DistributedRunner`, where this is one process of several. All
    classes take the same arguments.
    """
    return _kind_of(args)(args, device, dataset, model, client_trainer, server_aggregator, run_dir, observers, resume)


def _kind_of(args: Arguments) -> type[InProcessRunner | DistributedRunner | CrossDeviceServer]:
    if args.training_type == "cross_device":
        return CrossDeviceServer
    return InProcessRunner if args.backend == "sp" else DistributedRunner
