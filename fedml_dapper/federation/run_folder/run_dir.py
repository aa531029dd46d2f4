"""The folder that a run writes into: made, locked, and checked before the run begins or goes on in it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedml_dapper.config import path_of, short_name
from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.run_folder.file_names import (
    ACCOUNT_NAME,
    CHECKPOINTS_NAME,
    EVICTED_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    OPENED_NAME,
    REPORT_NAME,
    SETTINGS_NAME,
)
from fedml_dapper.federation.run_folder.foreign_files import (
    check_apart_from_data,
    check_nothing_foreign,
    checkpoints_in,
)
from fedml_dapper.federation.run_folder.ledger import read_unfinished
from fedml_dapper.federation.run_folder.model_file import round_of_model
from fedml_dapper.federation.run_folder.records import RunRecord
from fedml_dapper.federation.wire.settings_shared import SharedSettings
from fedml_dapper.files.atomic import explained, written_whole
from fedml_dapper.files.locks import lock_folder, unlock_folder


def open_run_dir(
    experiment: Experiment, path: Path | str | None = None, resume: bool = False, restart: bool = False
) -> Path:
    """Make the run's folder, lock it for this process, and write the effective settings into it.

    A second call for the same folder changes nothing.

    Args:
        experiment: What is to be run.
        path: The folder; by default a new one below ``dapper_args.output_dir``, named after data, method, seed and
            time.
        resume: Whether the folder may hold a run of the same experiment, also of fewer rounds, to go on with.
        restart: Whether to delete what a run left in the folder.

    Raises:
        ConfigError: The folder holds another run, or files of others that this one would replace; it is the data's; it
            cannot be written; or its run cannot be resumed.
        DataError: Another process is writing into the folder.
    """
    settings = experiment.settings
    path = None if path is None else path_of(path)
    if path is None:
        if resume or restart:
            asked = "--resume" if resume else "--restart"
            raise ConfigError(f"{asked} which run? give its folder, e.g. {asked} --output runs/FOLDER")
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        suite = short_name(settings.data_args.dataset)
        seed = settings.common_args.random_seed
        path = settings.dapper_args.output_dir / f"{suite}-{experiment.method.name}-seed{seed}-{stamp}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write into {path.absolute()}: {error.strerror}; choose another folder") from error
    is_ours_now = lock_folder(path)
    try:
        if is_ours_now:  # what stands there later is the run's own
            check_apart_from_data(path, settings)
            check_nothing_foreign(path)
        _prepare(experiment, path, resume, restart)
    except DapperError:
        if is_ours_now:  # this process may live on, and others want the folder
            unlock_folder(path)
        raise
    with written_whole(path / SETTINGS_NAME) as scratch:
        scratch.write_text(settings.as_yaml(), encoding="utf-8")
    return path


def is_finished(run_dir: Path, experiment: Experiment) -> bool:
    """Return whether the run in ``run_dir`` is complete: the global model of its last round is written last."""
    found = read_unfinished(run_dir / LEDGER_NAME)
    last = experiment.settings.train_args.comm_round
    return found is not None and len(found[1]) == last == round_of_model(run_dir / MODEL_NAME)


def _prepare(experiment: Experiment, path: Path, resume: bool, restart: bool) -> None:
    """Raise :class:`DapperError` unless a run may begin in ``path``, or go on."""
    ledger = path / LEDGER_NAME
    if ledger.exists() and not ledger.is_file():
        raise ConfigError(f"{ledger} is no file; remove it, or choose another folder")
    if restart:
        _clear(path)
    elif resume:
        _check_resumable(experiment, path)
    elif _is_without_rounds(path):
        _clear(path)
    elif ledger.exists():
        raise ConfigError(f"{path} holds a run already; go on with it by --resume, or choose another folder")


def _is_without_rounds(path: Path) -> bool:
    """Whether a run was begun in ``path`` and ended before its first round, as where a client's data were refused."""
    try:
        found = read_unfinished(path / LEDGER_NAME)
    except DataError:  # of a damaged ledger --resume says more
        return False
    return found is not None and not found[1] and not any(path.glob(f"{CHECKPOINTS_NAME}/*.safetensors"))


def _clear(path: Path) -> None:
    """Delete what a run wrote into ``path``, and nothing else: other files beside its checkpoints stay."""
    checkpoints = path / CHECKPOINTS_NAME
    with explained(path):
        for checkpoint in checkpoints_in(path):
            checkpoint.unlink()
        if checkpoints.is_dir() and not checkpoints.is_symlink() and not any(checkpoints.iterdir()):
            checkpoints.rmdir()
        # The ledger comes last: while it is there, a folder that was cleared in part is seen to be a run's.
        for name in (OPENED_NAME, EVICTED_NAME, ACCOUNT_NAME, MODEL_NAME, SETTINGS_NAME, REPORT_NAME, LEDGER_NAME):
            (path / name).unlink(missing_ok=True)


def _no_longer_said(path: Path) -> ConfigError:
    """Return the error for checkpoints in ``path`` whose ledger is missing, or has not even a whole first line."""
    ledger = path / LEDGER_NAME
    found = f"a {LEDGER_NAME} that is cut off in its first line" if ledger.exists() else f"no {LEDGER_NAME}"
    return ConfigError(
        f"{path} has checkpoints, but {found}, so that nothing says what was run; put the whole file back, or give"
        " --restart in place of --resume, which deletes the checkpoints and begins with round 1"
    )


def _check_resumable(experiment: Experiment, path: Path) -> None:
    """Raise :class:`ConfigError` unless ``path`` holds no run or one of the same settings on the same data."""
    found = read_unfinished(path / LEDGER_NAME)
    if found is None:
        if any(path.glob(f"{CHECKPOINTS_NAME}/*.safetensors")):
            raise _no_longer_said(path)
        return
    privacy = experiment.method.problem.privacy
    if privacy is not None and privacy.where == "client" and privacy.is_secret:
        raise ConfigError(
            f"{path} holds a run whose clients add secret noise: what they sent in the round that was cut off is not"
            " known, so that no epsilon would hold after it; begin anew in another folder"
        )
    theirs = found[0]
    ours = experiment.record()
    _check_rounds(experiment, theirs, path)
    shared = SharedSettings.of_experiment(experiment)
    recorded = SharedSettings.recorded(  # earlier versions did not say the defaults of the method
        theirs.settings, shared, theirs.method, theirs.params or None, theirs.sources, theirs.version
    )
    if difference := recorded.difference(shared):
        raise ConfigError(f"{path} holds a run with other settings: {difference}; take its own, or another folder")
    theirs = theirs.model_copy(update={"classes": theirs.classes or ours.classes})  # earlier versions did not say
    if any(getattr(theirs, key) != getattr(ours, key) for key in ("suite", "domains", "classes", "clients")):
        raise ConfigError(f"{path} holds a run on other data; give it the same, or take another folder")


def _check_rounds(experiment: Experiment, theirs: RunRecord, path: Path) -> None:
    """Raise :class:`ConfigError` unless the run in ``path`` is to have as many rounds as before, or more of the same.

    Another method than the run's own is left to the comparison of settings.
    """
    before = theirs.comm_round
    now = experiment.settings.train_args.comm_round
    if now < before:
        raise ConfigError(
            f"{path} holds a run of {before} rounds, and train_args.comm_round is {now} here: a run can be extended,"
            f" not shortened; give {before} or more, or another folder"
        )
    reason = experiment.method.fixed_comm_round
    if now > before and reason and theirs.method == experiment.method.name:
        raise ConfigError(
            f"{path} holds a run of {before} rounds, of which {now} rounds would be no continuation: with"
            f" `{theirs.method}`, {reason}; leave train_args.comm_round at {before}, or take another folder"
        )
