"""Tracking sinks for a run's metrics: TensorBoard, Weights & Biases, FedML's dashboard (docs/tracking.md)."""

from __future__ import annotations

from pathlib import Path

from fedml_dapper.config import Settings
from fedml_dapper.federation import RunObserver
from fedml_dapper.platform.tracking.guard import GuardedSink
from fedml_dapper.platform.tracking.mlops import MlopsSink, reporting_client_status
from fedml_dapper.platform.tracking.tensorboard import TensorBoardSink
from fedml_dapper.platform.tracking.wandb import WandbSink

__all__ = ["GuardedSink", "MlopsSink", "TensorBoardSink", "WandbSink", "reporting_client_status", "sinks_for"]


def sinks_for(settings: Settings, run_dir: Path) -> list[RunObserver]:
    """Return the sinks that ``tracking_args`` switches on; files go below ``run_dir``, and no sink stops the run."""
    args = settings.tracking_args
    sinks: list[RunObserver] = []
    if args.enable_tensorboard:
        sinks.append(GuardedSink("TensorBoard", lambda _: TensorBoardSink(run_dir)))
    if args.enable_wandb:
        sinks.append(GuardedSink("wandb", lambda record: WandbSink(args, record, run_dir)))
    if args.using_mlops:
        sinks.append(GuardedSink("FedML MLOps", lambda _: MlopsSink(settings)))
    return sinks
