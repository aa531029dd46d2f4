"""Run of an experiment in this process and its workers, without loading FedML unless trackers need it.

Rounds, files and every bit are those of FedML's runner (tests/platform/test_parity.py). Loading FedML takes seconds and
a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml_dapper.config import Settings
from fedml_dapper.federation import Experiment, RunObserver, simulate


def run_in_one_process(experiment: Experiment, run_dir: Path, observers: Sequence[RunObserver], resume: bool) -> None:
    """Run all rounds of ``experiment``, and call ``observers`` and the trackers that its settings switch on.

    It is for experiments with ``comm_args.backend: sp`` and without FedML's platform.
    """
    simulate(experiment, [*_trackers(experiment.settings, run_dir), *observers], run_dir, resume)


def _trackers(settings: Settings, folder: Path) -> list[RunObserver]:
    """Return TensorBoard and wandb where they are switched on. Only then FedML is loaded, by the room they are in."""
    if not (settings.tracking_args.enable_tensorboard or settings.tracking_args.enable_wandb):
        return []
    from fedml_dapper.platform.tracking import sinks_for  # noqa: PLC0415  # slow

    return sinks_for(settings, folder)
