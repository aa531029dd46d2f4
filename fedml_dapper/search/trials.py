"""Hyper-parameter search on validation samples (DapperFL, Appendix E).

A trial is one run per seed with settings that the search chooses; its score is the validation accuracy of the round
that is best on validation samples. The next trial depends on the plan and the trials before it alone, so an interrupted
search is resumed exactly. Its whole state is in optuna's journal (``journal.py``), into which several processes may
write; the study that samplers and pruners see is made from it anew for each trial.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna

from fedml_dapper.config import Settings, check
from fedml_dapper.errors import ConfigError
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
from fedml_dapper.randomness.seeding import Stream, numpy_generator
from fedml_dapper.search.choices import SamplerName
from fedml_dapper.search.journal import SearchJournal, as_optuna, take_over
from fedml_dapper.search.record import SearchPlan, SearchRecord, SeedResult, Trial
from fedml_dapper.search.space import Params, SearchSpace
from fedml_dapper.tasks import TOP_1

START_POINTS = 8
"""Quasi-random trials before the sampler takes over."""
_LEAST_FOR_IMPORTANCES = 20
"""Trials from which on the importance of settings is estimated."""


class SearchObserver(RunObserver):
    """Observer of every trial's runs, and of the trials themselves."""

    def trial_started(self, record: SearchRecord, trial: Trial) -> None:
        """Called when ``trial`` of ``record`` begins, or is resumed."""

    def trial_over(self, record: SearchRecord, trial: Trial) -> None:
        """Called when ``trial`` of ``record`` has ended."""


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

    Several processes may run it, each at a trial of its own; a trial whose process has ended is finished by another.

    Raises:
        ConfigError: Another search is in the folder, or the method accepts no point.
    """
    journal = _open(plan, folder)
    while True:
        with _next_trial(journal, plan, trials) as trial:
            if trial is None:
                return SearchRecord(plan=plan, trials=journal.trials())
            before = SearchRecord(plan=plan, trials=journal.trials())
            for observer in observers:
                observer.trial_started(before, trial)
            ended = _run(before, trial, folder, observers)
            journal.end(ended)
        for seed in plan.seeds:
            _drop_weights(run_folder(folder, plan, ended, seed))
        after = SearchRecord(plan=plan, trials=journal.trials())
        for observer in observers:
            observer.trial_over(after, ended)


def propose(plan: SearchPlan, trials: Sequence[Trial]) -> Params | None:
    """Return what to try after ``trials``: a quasi-random point at first, then the sampler's choice.

    If the method refuses that choice, or it was tried before (a run repeats itself exactly), the next quasi-random
    point is taken instead; None where all of these were tried.
    """
    tried = [trial.params for trial in trials]
    space = plan.space
    seed = _stream_seed(plan, 0)
    if len(trials) >= START_POINTS:
        study = _study(plan, SearchRecord(plan=plan, trials=tuple(trials)).measured, _sampler(plan, len(trials)))
        running = [trial for trial in trials if trial.state == "running"]  # by other processes; the GP keeps off them
        study.add_trials([as_optuna(plan, trial, optuna.trial.TrialState.RUNNING) for trial in running])
        params = study.ask(space.distributions()).params
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


def _open(plan: SearchPlan, folder: Path) -> SearchJournal:
    journal = SearchJournal(folder)
    take_over(journal)
    with journal.alone():
        found = journal.plan
        difference = "" if found is None else settings_difference(_comparable(found), _comparable(plan))
        if difference:
            raise ConfigError(f"{folder} holds another search: {difference}; ask for the same, or take another folder")
        if found != plan:
            journal.plan = plan
    return journal


@contextmanager
def _next_trial(journal: SearchJournal, plan: SearchPlan, trials: int) -> Iterator[Trial | None]:
    """Claim a trial that was interrupted, or else a new one, for the length of the block; None where there is none."""
    with ExitStack() as claims:
        with journal.alone():
            known = journal.trials()
            interrupted = (trial for trial in known if trial.state == "running")
            trial = next((trial for trial in interrupted if claims.enter_context(journal.claimed(trial))), None)
            if trial is None and len(known) < trials and (params := _untried(plan, known)) is not None:
                trial = Trial(number=len(known) + 1, params=params)
                journal.add(plan, trial)
                claims.enter_context(journal.claimed(trial))
        yield trial


def _untried(plan: SearchPlan, known: Sequence[Trial]) -> Params | None:
    params = propose(plan, known)
    if params is None and not known:
        raise ConfigError(f"method {plan.method} refuses all of these ranges beside its other settings")
    return params


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
    study.add_trials([as_optuna(plan, trial, optuna.trial.TrialState.COMPLETE) for trial in trials])
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
