"""A whole run in this process and its workers, by FedML's hands only where it uses FedML.

The rounds, the files and every bit are those of FedML's runner (tests/platform/test_parity.py). Loading FedML takes
seconds and a quarter of the memory, so a run does without where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml_dapper.config import Settings
from fedml_dapper.federation import Experiment, RunObserver, simulate


def run_in_one_process(experiment: Experiment, run_dir: Path, observers: Sequence[RunObserver], resume: bool) -> None:
    """Run all rounds of ``experiment``, told to ``observers`` and to the trackers that it names.

    For experiments with ``comm_args.backend: sp`` and without FedML's platform.
    """
    simulate(experiment, [*_trackers(experiment.settings, run_dir), *observers], run_dir, resume)


def _trackers(settings: Settings, folder: Path) -> list[RunObserver]:
    """TensorBoard and wandb, where they are switched on; only then is FedML loaded, beside which they live."""
    if not (settings.tracking_args.enable_tensorboard or settings.tracking_args.enable_wandb):
        return []
    from fedml_dapper.platform.tracking import sinks_for  # noqa: PLC0415  # slow

    return sinks_for(settings, folder)
