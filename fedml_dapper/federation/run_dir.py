"""The folder a run writes into."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.resume import check_same_run

LEDGER_NAME = "ledger.jsonl"
MODEL_NAME = "global_model.safetensors"
CHECKPOINTS_NAME = "checkpoints"
SETTINGS_NAME = "settings.yaml"
REPORT_NAME = "report.html"


def open_run_dir(experiment: Experiment, path: Path | None = None, resume: bool = False) -> Path:
    """Make the run's folder and put the effective settings into it; asking twice changes nothing.

    By default a new one below ``dapper_args.output_dir``, named after data, method, seed and time. With ``resume`` the
    folder may hold a run of the same experiment. Raises :class:`ConfigError` where ``path`` holds any other run, cannot
    be written, or cannot be resumed.
    """
    settings = experiment.settings
    if resume and settings.common_args.training_type == "cross_silo":
        raise ConfigError("resuming is for runs in one process or under MPI: silos keep what they remember to themselves")
    if path is None and resume:
        raise ConfigError("which run is to be resumed? give its folder, e.g. --resume --output runs/FOLDER")
    if path is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        suite, seed = settings.data_args.dataset, settings.common_args.random_seed
        path = settings.dapper_args.output_dir / f"{suite}-{experiment.method.name}-seed{seed}-{stamp}"
    if resume:
        check_same_run(experiment, path / LEDGER_NAME)
    elif (path / LEDGER_NAME).exists():
        raise ConfigError(f"{path} holds a run already; go on with it by --resume, choose another folder or move it away")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / SETTINGS_NAME).write_text(settings.as_yaml(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write into {path.absolute()}: {error.strerror}; choose another folder") from error
    return path
