"""The folder a run writes into."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import Experiment

LEDGER_NAME = "ledger.jsonl"
CHECKPOINT_NAME = "global_model.safetensors"
SETTINGS_NAME = "settings.yaml"
REPORT_NAME = "report.html"


def new_run_dir(experiment: Experiment, path: Path | None = None) -> Path:
    """Make the run's folder and put the effective settings into it.

    By default a new one below ``dapper_args.output_dir``, named after data, method, seed and time. Raises
    :class:`ConfigError` where ``path`` holds a run already or cannot be written.
    """
    settings = experiment.settings
    if path is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        suite, seed = settings.data_args.dataset, settings.common_args.random_seed
        path = settings.dapper_args.output_dir / f"{suite}-{experiment.method.name}-seed{seed}-{stamp}"
    if (path / LEDGER_NAME).exists():
        raise ConfigError(f"{path} holds a run already; choose another folder or move it away")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / SETTINGS_NAME).write_text(settings.as_yaml(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write into {path.absolute()}: {error.strerror}; choose another folder") from error
    return path
