"""The folder a run writes into."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedml_dapper.config import Settings, check, short_name
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.durable import written_whole
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.identity import changed_params, settings_difference, shared_settings
from fedml_dapper.federation.ledger import read_unfinished
from fedml_dapper.federation.model_file import round_of_model

LEDGER_NAME = "ledger.jsonl"
MODEL_NAME = "global_model.safetensors"
CHECKPOINTS_NAME = "checkpoints"
SETTINGS_NAME = "settings.yaml"
REPORT_NAME = "report.html"


def open_run_dir(experiment: Experiment, path: Path | str | None = None, resume: bool = False) -> Path:
    """Make the run's folder and put the effective settings into it; asking twice changes nothing.

    By default a new one below ``dapper_args.output_dir``, named after data, method, seed and time. With ``resume`` the
    folder may hold a run of the same experiment. Raises :class:`ConfigError` where ``path`` holds any other run, cannot
    be written, or the run cannot be resumed.
    """
    settings, path = experiment.settings, None if path is None else Path(path)
    if resume:
        path = _resumable(experiment, path)
    elif path is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        suite, seed = short_name(settings.data_args.dataset), settings.common_args.random_seed
        path = settings.dapper_args.output_dir / f"{suite}-{experiment.method.name}-seed{seed}-{stamp}"
    elif (path / LEDGER_NAME).exists():
        raise ConfigError(f"{path} holds a run already; go on with it by --resume, or choose another folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write into {path.absolute()}: {error.strerror}; choose another folder") from error
    with written_whole(path / SETTINGS_NAME) as scratch:
        scratch.write_text(settings.as_yaml(), encoding="utf-8")
    return path


def is_finished(run_dir: Path, experiment: Experiment) -> bool:
    """Whether the run in ``run_dir`` has nothing left to do. The global model of its last round is written last."""
    found, last = read_unfinished(run_dir / LEDGER_NAME), experiment.settings.train_args.comm_round
    return found is not None and len(found[1]) == last == round_of_model(run_dir / MODEL_NAME)


def _resumable(experiment: Experiment, path: Path | None) -> Path:
    """``path``, if it holds no run or one of the same settings on the same data."""
    if path is None:
        raise ConfigError("--resume which run? give its folder, e.g. --resume --output runs/FOLDER")
    found = read_unfinished(path / LEDGER_NAME)
    if found is None:
        return path
    theirs, ours = found[0], experiment.record()
    settings = check(Settings, theirs.settings, where=str(path / LEDGER_NAME))
    difference = settings_difference(
        shared_settings(settings, theirs.sources), shared_settings(experiment.settings, ours.sources)
    )
    difference = difference or changed_params(theirs.params, ours.params)
    if difference:
        raise ConfigError(f"{path} holds a run with other settings: {difference}; take its own, or another folder")
    theirs = theirs.model_copy(update={"classes": theirs.classes or ours.classes})  # earlier versions did not say
    if any(getattr(theirs, key) != getattr(ours, key) for key in ("suite", "domains", "classes", "clients")):
        raise ConfigError(f"{path} holds a run on other data; give it the same, or take another folder")
    return path
