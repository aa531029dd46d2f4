"""State of a search on disk: optuna's journal of its trials, into which several processes may write at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from pydantic import ValidationError

from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.files.atomic import explained
from fedml_dapper.files.locks import HeldError, give_back, locked, take
from fedml_dapper.files.regular_file import in_place_of_file
from fedml_dapper.search.record import SearchPlan, SearchRecord, Trial, TrialState

JOURNAL_NAME = "journal.log"
OLD_NAME = "search.json"
"""File of a search of earlier versions, which is read once."""
STUDY = "search"
"""Name of the study, by which ``optuna.load_study`` finds it."""
_LOCK_NAME = "lock"
_FOR_EVER = -1.0
_PLAN = "plan"
_STATES: Mapping[TrialState, optuna.trial.TrialState] = {
    "running": optuna.trial.TrialState.RUNNING,
    "finished": optuna.trial.TrialState.COMPLETE,
    "pruned": optuna.trial.TrialState.PRUNED,
    "refused": optuna.trial.TrialState.FAIL,
}
_NAMES = {theirs: ours for ours, theirs in _STATES.items()}


class SearchJournal:
    """Trials of the search in a folder; methods that write raise :class:`DataError` if the disk is full or damaged."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in ``folder``, or begin one.

        Raises:
            ConfigError: The folder cannot be written.
            DataError: Its file is no journal.
        """
        self.folder = folder
        self._path = folder / JOURNAL_NAME
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if found := in_place_of_file(self._path):  # a pipe would keep its reader waiting
            raise DataError(f"{self._path} is {found}, no journal of a search; remove it, or take another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(self._path)
            self._storage = JournalStorage(JournalFileBackend(str(self._path)))
            self._study = _study_in(self._storage)
        except OSError as error:
            raise ConfigError(
                f"cannot write into {folder.absolute()}: {error.strerror}; choose another folder"
            ) from error
        except (ValueError, LookupError, TypeError, AssertionError) as error:  # no JSON, or not a journal's
            raise DataError(f"{self._path} is not the journal of a search; was it edited?") from error

    @property
    def plan(self) -> SearchPlan | None:
        """The plan of the last command; None where no search was begun."""
        text = self._study.user_attrs.get(_PLAN)
        if text is None:
            return None
        try:
            return SearchPlan.model_validate_json(text)
        except ValidationError as error:
            raise DataError(f"{self._path} holds no search that this version knows; take another folder") from error

    @plan.setter
    def plan(self, plan: SearchPlan) -> None:
        with explained(self._path):
            self._study.set_user_attr(_PLAN, plan.model_dump_json())

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials in order."""
        return tuple(_ours(frozen) for frozen in self._study.get_trials(deepcopy=False))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from adding trials for the length of the block."""
        with locked(self.folder / _LOCK_NAME, _FOR_EVER):
            yield

    def add(self, plan: SearchPlan, trial: Trial) -> None:
        """Append ``trial``; to be called inside :meth:`alone`."""
        with explained(self._path):
            self._study.add_trial(as_optuna(plan, trial, _STATES[trial.state]))

    def end(self, trial: Trial) -> None:
        """Write the results and the state of ``trial``, which was added before."""
        study_id = self._storage.get_study_id_from_name(STUDY)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number - 1)
        with explained(self._path):
            for key, value in _attributes(trial).items():
                self._storage.set_trial_user_attr(trial_id, key, value)
            for step, accuracy in enumerate(trial.curve):
                self._storage.set_trial_intermediate_value(trial_id, step, accuracy)
            values = [trial.validation_accuracy] if trial.results else None
            self._storage.set_trial_state_values(trial_id, _STATES[trial.state], values)

    @contextmanager
    def claimed(self, trial: Trial) -> Iterator[bool]:
        """Claim ``trial`` for the length of the block; yields False where another process has it."""
        try:
            lock = take(self.folder / "trials" / f"{trial.number:03d}.lock")
        except HeldError:
            yield False
            return
        try:
            yield True
        finally:
            give_back(lock)


def read_search(folder: Path) -> SearchRecord:
    """Read the search in ``folder``.

    Raises:
        DataError: There is none, or it is damaged.
    """
    if not (folder / JOURNAL_NAME).is_file() and not (folder / OLD_NAME).is_file():
        raise DataError(f"no search at {folder.absolute()}; begin one with -c CONFIG and --params")
    journal = SearchJournal(folder)
    take_over(journal)
    plan = journal.plan
    if plan is None:
        raise DataError(f"no search was begun at {folder.absolute()}; begin one with -c CONFIG and --params")
    return SearchRecord(plan=plan, trials=journal.trials())


def take_over(journal: SearchJournal) -> None:
    """Copy the search of an earlier version in the folder into ``journal``, unless a search was begun there."""
    path = journal.folder / OLD_NAME
    with journal.alone():
        if journal.plan is not None or not path.is_file():
            return
        try:
            old = _OldRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise DataError(f"{path} is not the record of a search; was it written by another version?") from error
        for trial in old.trials[len(journal.trials()) :]:
            journal.add(old.plan, trial)
        journal.plan = old.plan  # the last, so that a process that is killed here does it again


def as_optuna(plan: SearchPlan, trial: Trial, state: optuna.trial.TrialState) -> optuna.trial.FrozenTrial:
    """Return ``trial`` as optuna's, in the given ``state``."""
    return optuna.trial.create_trial(
        state=state,
        params=trial.params,
        distributions=plan.space.distributions(),
        value=trial.validation_accuracy if trial.results else None,
        intermediate_values=dict(enumerate(trial.curve)),
        user_attrs=_attributes(trial),
    )


def _attributes(trial: Trial) -> dict[str, Any]:
    """Return what optuna's trials have no field for."""
    return trial.model_dump(mode="json", include={"results", "message"})


def _ours(frozen: optuna.trial.FrozenTrial) -> Trial:
    return Trial(number=frozen.number + 1, params=frozen.params, state=_NAMES[frozen.state], **frozen.user_attrs)


class _OldRecord(Record):
    """Content of ``search.json``."""

    record: Literal["search"]
    version: str
    plan: SearchPlan
    trials: tuple[Trial, ...]


def _study_in(storage: JournalStorage) -> optuna.Study:
    try:
        return optuna.load_study(study_name=STUDY, storage=storage)
    except KeyError:  # or another process makes it in this moment
        return optuna.create_study(study_name=STUDY, storage=storage, direction="maximize", load_if_exists=True)


def _cut_torn_line(path: Path) -> None:
    """Remove a last line that a killed process did not finish, as the next line would be appended to it."""
    if not path.exists():
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as stream:
                stream.truncate(whole)
    finally:
        lock.release()
