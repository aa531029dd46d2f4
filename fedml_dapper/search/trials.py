"""Hyper-parameter search on validation samples (DapperFL, Appendix E).

A trial is one run per seed with settings that the search chooses; its score is the validation accuracy of the round
that is best on validation samples. The next trial depends on the plan and the trials before it alone, so an interrupted
search is resumed exactly. Its whole state is in ``search.json``; optuna's study is made from it anew for each trial.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import optuna
from pydantic import ValidationError

from fedml_dapper import __version__
from fedml_dapper.config import Settings, check, merge
from fedml_dapper.durable import written_whole
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.evaluation.summary import summarise
from fedml_dapper.federation import (
    CHECKPOINTS_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    Experiment,
    RoundRecord,
    RunObserver,
    RunRecord,
    build_experiment,
    read_ledger,
    settings_difference,
    shared_settings,
    simulate,
)
from fedml_dapper.federation.records import Record
from fedml_dapper.methods import METHODS
from fedml_dapper.run_lock import try_lock
from fedml_dapper.search.choices import SamplerName
from fedml_dapper.search.space import Params, Range, SearchSpace
from fedml_dapper.seeding import Stream, numpy_generator
from fedml_dapper.tasks import TOP_1

SEARCH_NAME = "search.json"
LOCK_NAME = "lock"
START_POINTS = 8
"""Quasi-random trials before the sampler takes over."""
_LEAST_FOR_IMPORTANCES = 20
"""Trials from which on the importance of settings is estimated."""


class SearchPlan(Record):
    """All that determines a search, except for the number of its trials."""

    settings: dict[str, Any]
    """Settings of the experiment; the searched ones are laid over them."""
    suite: str
    """The data's label; it says "(subset)" where the data are not the complete set."""
    seeds: tuple[int, ...]
    """Seeds of every trial, so that trials differ in nothing but what is searched."""
    sampler: SamplerName
    prune: bool
    """Whether trials stop early whose validation accuracy stays below the median of the others'."""
    ranges: dict[str, Range]

    @property
    def method(self) -> str:
        name: str = self.settings["dapper_args"]["method"]
        return name

    @property
    def space(self) -> SearchSpace:
        return SearchSpace(
            METHODS[self.method], self.settings["dapper_args"]["params"].get(self.method, {}), self.ranges
        )

    @property
    def rounds(self) -> int:
        """Rounds of a trial, over all its seeds."""
        rounds: int = self.settings["train_args"]["comm_round"]
        return rounds * len(self.seeds)

    def overlay(self, params: Params) -> dict[str, Any]:
        """Return ``params`` as a section of an experiment file."""
        return {"dapper_args": {"params": {self.method: params}}}

    def run_settings(self, params: Params, seed: int) -> Settings:
        """Return the settings of one run of a trial."""
        values = merge(merge(self.settings, self.overlay(params)), {"common_args": {"random_seed": seed}})
        return check(Settings, values, where="search")


class SeedResult(Record):
    """Result of one run of a trial."""

    seed: int
    validation: tuple[float, ...]
    """Accuracy on validation samples, tested round by tested round."""
    chosen_round: int
    """The first round that is best on validation samples."""
    validation_accuracy: float
    test_accuracy: float
    """Test accuracy of the chosen round. The search never looks at it."""
    seconds: float


class Trial(Record):
    """One combination of the searched settings, and its results."""

    number: int
    """Number of the trial, from 1."""
    params: Params
    state: Literal["running", "finished", "pruned", "refused"] = "running"
    results: tuple[SeedResult, ...] = ()
    """Results by seed; a pruned trial lacks seeds that it did not reach, and rounds of the last."""
    message: str = ""
    """Why the experiment cannot be run with these settings, if it is refused."""

    @property
    def validation_accuracy(self) -> float:
        """What is maximised: mean over the seeds, percent; of a pruned trial, over the rounds that it reached."""
        return fmean(result.validation_accuracy for result in self.results)

    @property
    def test_accuracy(self) -> float:
        """Mean over the seeds, percent."""
        return fmean(result.test_accuracy for result in self.results)


class SearchRecord(Record):
    """State of a search."""

    record: Literal["search"] = "search"
    version: str = __version__
    plan: SearchPlan
    trials: tuple[Trial, ...] = ()

    @property
    def over(self) -> tuple[Trial, ...]:
        """Trials that have ended, in order."""
        return tuple(trial for trial in self.trials if trial.state != "running")

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials that have a validation accuracy, in order."""
        return tuple(trial for trial in self.over if trial.results)

    @property
    def ranking(self) -> list[Trial]:
        """Finished trials, the best first; of equally good ones the earlier is first."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        return sorted(finished, key=lambda trial: -trial.validation_accuracy)

    def with_trial(self, trial: Trial) -> SearchRecord:
        """Return the record with ``trial`` in the place of its number."""
        return self.model_copy(update={"trials": (*self.trials[: trial.number - 1], trial)})

    def save(self, folder: Path) -> None:
        """Write ``search.json``, whole or not at all."""
        with written_whole(folder / SEARCH_NAME) as scratch:
            scratch.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> SearchRecord:
        """Read the search in ``folder``.

        Raises:
            DataError: There is none, or it is damaged.
        """
        path = folder / SEARCH_NAME
        if not path.is_file():
            raise DataError(f"no search at {path.absolute()}; begin one with -c CONFIG and --params")
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise DataError(f"{path} is not the record of a search; was it written by another version?") from error


class SearchObserver(RunObserver):
    """Observer of every trial's runs, and of the trials themselves."""

    def trial_started(self, record: SearchRecord) -> None:
        """Called when the last trial of ``record`` begins, or is resumed."""

    def trial_over(self, record: SearchRecord) -> None:
        """Called when the last trial of ``record`` has ended."""


def plan_search(
    experiment: Experiment, space: SearchSpace, seeds: Sequence[int], sampler: SamplerName, prune: bool
) -> SearchPlan:
    """Plan a search that starts from ``experiment``, with its own seed if there are no ``seeds``.

    Raises:
        ConfigError: There are no validation samples to choose by, or the experiment cannot be searched.
    """
    settings = experiment.settings
    if settings.comm_args.backend != "sp":
        raise ConfigError("a search runs in one process; take `--set training_type=simulation --set backend=sp`")
    if (headline := experiment.method.problem.task.headline) != TOP_1:
        raise ConfigError(f"a search goes for {TOP_1.title}, and the task of this experiment for {headline.title}")
    if experiment.method.has_global_model:
        validates = bool(experiment.validations)
    else:
        validates = all(own.validation is not None for own in experiment.client_tests)
    if not validates:
        raise ConfigError(
            "a search chooses by validation samples, and there are none here: set data_args.validation_share,"
            " e.g. --set validation_share=0.1 (partition domain_shares)"
        )
    return SearchPlan(
        settings=settings.model_dump(mode="json"),
        suite=experiment.suite_label,
        seeds=tuple(seeds) or (settings.common_args.random_seed,),
        sampler=sampler,
        prune=prune,
        ranges=dict(space.ranges),
    )


def run_search(plan: SearchPlan, folder: Path, trials: int, observers: Sequence[SearchObserver] = ()) -> SearchRecord:
    """Run or resume the search in ``folder``, until it has ``trials`` trials or nothing is left to try.

    Each run's ledger stays below ``folder/trials``; models and checkpoints are removed.

    Raises:
        ConfigError: Another search is in the folder, another process is running it, or the method accepts no point.
    """
    with _alone_in(folder):
        record = _open(plan, folder)
        while (trial := _next_trial(record, trials)) is not None:
            record = record.with_trial(trial)
            record.save(folder)
            for observer in observers:
                observer.trial_started(record)
            record = record.with_trial(_run(record, trial, folder, observers))
            record.save(folder)
            for seed in plan.seeds:
                _drop_weights(run_folder(folder, plan, trial, seed))
            for observer in observers:
                observer.trial_over(record)
    return record


def propose(plan: SearchPlan, trials: Sequence[Trial]) -> Params | None:
    """Return what to try after ``trials``: a quasi-random point at first, then the sampler's choice.

    If the method refuses that choice, or it was tried before (a run repeats itself exactly), the next quasi-random
    point is taken instead; None where all of these were tried.
    """
    tried = [trial.params for trial in trials]
    space = plan.space
    seed = _stream_seed(plan, 0)
    if len(trials) >= START_POINTS:
        measured = [trial for trial in trials if trial.results]
        params = _study(plan, measured, _sampler(plan, len(trials))).ask(space.distributions()).params
        if space.accepts(params) and params not in tried:
            return params
    return next((point for point in space.points(seed) if point not in tried), None)


def importances(record: SearchRecord) -> dict[str, float]:
    """Return each setting's share of the variance of validation accuracy over the ranges (fANOVA), the largest first.

    Empty while there are too few trials to estimate it.
    """
    scores = {trial.validation_accuracy for trial in record.measured}
    if len(record.plan.ranges) < 2 or len(record.measured) < _LEAST_FOR_IMPORTANCES or len(scores) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)  # its random forest is seeded
    return optuna.importance.get_param_importances(_study(record.plan, record.measured), evaluator=evaluator)


def run_folder(folder: Path, plan: SearchPlan, trial: Trial, seed: int) -> Path:
    """Return the folder of a trial's run."""
    place = folder / "trials" / f"{trial.number:03d}"
    return place if len(plan.seeds) == 1 else place / f"seed{seed}"


def _open(plan: SearchPlan, folder: Path) -> SearchRecord:
    if not (folder / SEARCH_NAME).exists():
        return SearchRecord(plan=plan)
    found = SearchRecord.load(folder)
    difference = settings_difference(_comparable(found.plan), _comparable(plan))
    if difference:
        raise ConfigError(f"{folder} holds another search: {difference}; ask for the same, or take another folder")
    return found.model_copy(update={"plan": plan})


def _next_trial(record: SearchRecord, trials: int) -> Trial | None:
    """The trial that was interrupted, or else the next one; None where there is none."""
    if record.trials and record.trials[-1].state == "running":
        return record.trials[-1]
    if len(record.trials) >= trials:
        return None
    params = propose(record.plan, record.trials)
    if params is None:
        if not record.trials:
            raise ConfigError(f"method {record.plan.method} refuses all of these ranges beside its other settings")
        return None
    return Trial(number=len(record.trials) + 1, params=params)


def _run(record: SearchRecord, trial: Trial, folder: Path, observers: Sequence[SearchObserver]) -> Trial:
    plan = record.plan
    results = []
    gauge = _Gauge(plan, record.measured, trial.params)
    for seed in plan.seeds:
        place = run_folder(folder, plan, trial, seed)
        try:
            experiment = build_experiment(plan.run_settings(trial.params, seed))
        except ConfigError as error:  # of these settings alone, as the experiment itself was built before
            return trial.model_copy(update={"state": "refused", "message": str(error)})
        pruned = False
        try:
            simulate(experiment, [*observers, gauge], place, resume=True)
        except optuna.TrialPruned:
            pruned = True
        results.append(_result(seed, *read_ledger(place / LEDGER_NAME)))
        if pruned:
            break
    state: Literal["finished", "pruned"] = "pruned" if pruned else "finished"
    return trial.model_copy(update={"state": state, "results": tuple(results)})


def _result(seed: int, run: RunRecord, rounds: Sequence[RoundRecord]) -> SeedResult:
    summary = summarise(run, rounds)
    assert summary.chosen is not None, "plan_search looks for validation samples"
    return SeedResult(
        seed=seed,
        validation=tuple(r.validation_scores.global_accuracy for r in rounds if r.validation_scores is not None),
        chosen_round=summary.chosen.round,
        validation_accuracy=summary.chosen.validation_accuracy,
        test_accuracy=summary.chosen.global_accuracy,
        seconds=summary.seconds,
    )


class _Gauge(RunObserver):
    """Reports a trial's validation accuracies, over all its seeds, and prunes it if the plan says so."""

    def __init__(self, plan: SearchPlan, before: Sequence[Trial], params: Params) -> None:
        study = _study(plan, before)
        study.enqueue_trial(params)
        self._trial = study.ask(plan.space.distributions())
        self._step = 0

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        for finished in rounds:
            self.round_finished(finished)

    def round_finished(self, record: RoundRecord) -> None:
        if record.validation_scores is None:
            return
        self._trial.report(record.validation_scores.global_accuracy, self._step)
        self._step += 1
        if self._trial.should_prune():
            raise optuna.TrialPruned


def _study(
    plan: SearchPlan, trials: Sequence[Trial], sampler: optuna.samplers.BaseSampler | None = None
) -> optuna.Study:
    """Make optuna's study of measured trials.

    Pruned trials count with the accuracy they reached; without them the GP would try the same point again.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    patience = (  # no trial is pruned in the first third of its run's tests
        plan.settings["train_args"]["comm_round"] // plan.settings["validation_args"]["frequency_of_the_test"] // 3
    )
    pruner = optuna.pruners.MedianPruner(START_POINTS, patience) if plan.prune else optuna.pruners.NopPruner()
    study = optuna.create_study(
        direction="maximize", sampler=sampler or optuna.samplers.RandomSampler(0), pruner=pruner
    )
    for trial in trials:
        curve = [accuracy for result in trial.results for accuracy in result.validation]
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.params,
                distributions=plan.space.distributions(),
                value=trial.validation_accuracy,
                intermediate_values=dict(enumerate(curve)),
            )
        )
    return study


def _sampler(plan: SearchPlan, number: int) -> optuna.samplers.BaseSampler:
    seed = _stream_seed(plan, number)
    if plan.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)


def _stream_seed(plan: SearchPlan, *keys: int) -> int:
    stream = numpy_generator(plan.settings["common_args"]["random_seed"], Stream.SEARCH, *keys)
    return int(stream.integers(2**31))


def _comparable(plan: SearchPlan) -> Mapping[str, Any]:
    settings = check(Settings, plan.settings, where="the settings of the search")
    return plan.model_dump() | {"settings": shared_settings(settings)}


def _drop_weights(place: Path) -> None:
    shutil.rmtree(place / CHECKPOINTS_NAME, ignore_errors=True)
    (place / MODEL_NAME).unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, as two searches in it would write into each other's runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_NAME).open("w")
    except OSError as error:
        raise ConfigError(f"cannot write into {folder.absolute()}: {error.strerror}; choose another folder") from error
    with lock:
        if not try_lock(lock.fileno(), folder):
            raise ConfigError(f"another process is searching in {folder.absolute()}; wait for it, or stop it")
        yield
