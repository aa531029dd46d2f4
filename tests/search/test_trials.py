from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import optuna
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fedml_dapper.cli import main
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import LEDGER_NAME, RoundRecord, build_experiment, read_ledger, simulate
from fedml_dapper.methods import METHODS
from fedml_dapper.search import trials as search_module
from fedml_dapper.search.journal import JOURNAL_NAME, OLD_NAME, STUDY, read_search
from fedml_dapper.search.record import SearchPlan, SearchRecord, Trial
from fedml_dapper.search.search_terminal import BEST_NAME, show_best
from fedml_dapper.search.space import Range, search_space
from fedml_dapper.search.trials import START_POINTS, SearchObserver, plan_search, propose, run_search

from .made_up_search import made_up_plan, made_up_search, made_up_trial, near_three_tenths, written_down

SettingsFactory = Callable[..., Settings]
QUICK = (
    "width=8", "client_num_in_total=4", "client_num_per_round=3", "client_share=0.05", "epochs=1", "batch_size=16",
    "comm_round=2", "validation_share=0.2", "checkpoint_every=1",
)  # fmt: skip
"""A run of a second."""
SECONDS = re.compile(r'"seconds":[0-9.e-]+')


@pytest.fixture
def plan(tiny_settings: SettingsFactory) -> Callable[..., SearchPlan]:
    def make(
        *overrides: str, names: Sequence[str] = ("eps", "gamma"), ranges: Sequence[str] = (), **changes: Any
    ) -> SearchPlan:
        settings = tiny_settings(*QUICK, *overrides)
        params = settings.dapper_args.params.get(settings.dapper_args.method, {})
        space = search_space(METHODS[settings.dapper_args.method], params, names, ranges)
        arguments: dict[str, Any] = {"seeds": (), "sampler": "gp", "prune": False}
        return plan_search(build_experiment(settings), space, **(arguments | changes))

    return make


@pytest.mark.nightly
def test_score_is_the_ledgers_best_validation_accuracy(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    record = run_search(plan("comm_round=3"), tmp_path, trials=2)
    assert read_search(tmp_path) == record
    for trial in record.trials:
        run, rounds = read_ledger(tmp_path / "trials" / f"{trial.number:03d}" / LEDGER_NAME)
        assert run.settings["dapper_args"]["params"]["dapperfl"].items() >= trial.params.items()
        accuracies = [r.validation_scores.global_accuracy for r in rounds if r.validation_scores]
        assert trial.validation_accuracy == max(accuracies)
        (result,) = trial.results
        assert (result.seed, result.validation) == (1, tuple(accuracies))
        scores = rounds[result.chosen_round - 1].scores
        assert scores is not None
        assert trial.test_accuracy == scores.global_accuracy
    assert record.trials[0].params != record.trials[1].params
    assert not list((tmp_path / "trials").rglob("*.safetensors"))  # neither models nor checkpoints


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_test_scores_play_no_part(tiny_settings: SettingsFactory, sampler: str) -> None:
    plan = made_up_plan(tiny_settings(), sampler=sampler)
    record = made_up_search(plan, START_POINTS + 2, near_three_tenths)
    flattered = [
        made_up_trial(trial.number, trial.params, trial.validation_accuracy, test_accuracy=10.0 * trial.number)
        for trial in record.trials
    ]
    assert propose(plan, flattered) == propose(plan, record.trials)
    ranking = record.model_copy(update={"trials": tuple(flattered)}).ranking
    assert [trial.number for trial in ranking] == [trial.number for trial in record.ranking]
    worse = [made_up_trial(t.number, t.params, 100 - t.validation_accuracy) for t in record.trials]
    assert propose(plan, worse) != propose(plan, record.trials)  # whereas validation scores do


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_samplers_find_the_optimum(tiny_settings: SettingsFactory, sampler: str) -> None:
    record = made_up_search(made_up_plan(tiny_settings(), sampler=sampler), 20, near_three_tenths)
    start = made_up_search(record.plan, START_POINTS, near_three_tenths)
    assert record.ranking[0].number > START_POINTS
    assert abs(record.ranking[0].params["eps"] - 0.3) < 0.01
    assert start.trials == record.trials[:START_POINTS]
    assert abs(start.ranking[0].params["eps"] - 0.3) > 0.01


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_what_is_tried_next_follows_from_the_record_alone(
    tiny_settings: SettingsFactory, tmp_path: Path, sampler: str
) -> None:
    settings = tiny_settings()
    record = made_up_search(made_up_plan(settings, sampler=sampler), START_POINTS + 3, near_three_tenths)
    written_down(record, tmp_path)
    read = read_search(tmp_path)
    assert propose(read.plan, read.trials) == propose(record.plan, record.trials)
    other_seed = made_up_plan(tiny_settings("random_seed=2"), sampler=sampler)
    assert propose(other_seed, record.trials) != propose(record.plan, record.trials)
    assert propose(other_seed, []) != propose(record.plan, [])


@pytest.mark.nightly
def test_killed_search_goes_on_as_if_nothing_had_happened(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_search(plan(), straight, trials=3)

    def die() -> None:
        run_search(plan(), broken, 3, [_KillIn(trial=2, round_=2)])

    child = get_context("fork").Process(target=die)
    child.start()
    child.join(timeout=600)
    assert child.exitcode == -signal.SIGKILL
    record = read_search(broken)
    assert [trial.state for trial in record.trials] == ["finished", "running"]
    finished = (broken / "trials" / "001" / LEDGER_NAME).read_bytes()

    counter = _Rounds()
    after = run_search(plan(), broken, 3, [counter])

    assert counter.rounds == [(2, 2), (3, 1), (3, 2)]
    assert after.trials[1].params == record.trials[1].params
    assert (broken / "trials" / "001" / LEDGER_NAME).read_bytes() == finished
    assert _without_seconds(broken) == _without_seconds(straight)


@pytest.mark.nightly
def test_finished_search_runs_nothing_and_more_trials_go_on(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    first = run_search(plan(), tmp_path, trials=1)
    counter = _Rounds()
    assert run_search(plan(), tmp_path, 1, [counter]) == first
    assert counter.rounds == []
    assert run_search(plan(), tmp_path, 2, [counter]).trials[:1] == first.trials
    assert counter.rounds == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("overrides", "changes", "difference"),
    [
        (("epochs=2",), {}, "settings.train_args.epochs is 1 there and 2 here"),
        ((), {"names": ("eps",)}, "ranges.gamma.high is 0.1 there and None here"),
        ((), {"ranges": ("eps=0.01:0.2",)}, "ranges.eps.high is 0.5 there and 0.2 here"),
        ((), {"seeds": (1, 2)}, r"seeds is \(1,\) there and \(1, 2\) here"),
        ((), {"sampler": "tpe"}, "sampler is gp there and tpe here"),
        ((), {"prune": True}, "prune is False there and True here"),
    ],
)
def test_another_search_is_refused(
    plan: Callable[..., SearchPlan],
    tmp_path: Path,
    overrides: tuple[str, ...],
    changes: dict[str, Any],
    difference: str,
) -> None:
    record = SearchRecord(plan=plan())
    written_down(record, tmp_path)
    with pytest.raises(ConfigError, match=f"^{tmp_path} holds another search: {difference}"):
        run_search(plan(*overrides, **changes), tmp_path, trials=1)
    assert read_search(tmp_path) == record


@pytest.mark.nightly
def test_settings_of_the_machine_may_be_others(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    written_down(SearchRecord(plan=plan()), tmp_path)
    elsewhere = plan("output_dir=elsewhere", "checkpoint_every=2")
    assert run_search(elsewhere, tmp_path, trials=1).plan == elsewhere


@pytest.mark.nightly
def test_score_is_the_mean_over_the_seeds(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    two = plan(seeds=(2, 5))
    record = run_search(two, tmp_path, trials=1)
    (trial,) = record.trials
    alone = []
    for seed in (2, 5):
        _, rounds = simulate(build_experiment(two.run_settings(trial.params, seed)))
        alone.append(max(r.validation_scores.global_accuracy for r in rounds if r.validation_scores))
        _, written = read_ledger(tmp_path / "trials" / "001" / f"seed{seed}" / LEDGER_NAME)
        assert [r.scores for r in written] == [r.scores for r in rounds]
    assert [result.validation_accuracy for result in trial.results] == alone
    assert alone[0] != alone[1]
    assert trial.validation_accuracy == sum(alone) / 2


def test_weak_trials_are_stopped_early_if_asked(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    strong = made_up_search(plan(prune=True), START_POINTS, lambda _: 100.0)
    written_down(strong, tmp_path)
    record = run_search(strong.plan, tmp_path, START_POINTS + 1)
    weak = record.trials[-1]
    assert weak.state == "pruned"
    assert len(read_ledger(tmp_path / "trials" / f"{weak.number:03d}" / LEDGER_NAME)[1]) == 1
    assert weak not in record.ranking
    assert run_search(strong.plan, tmp_path, START_POINTS + 1) == record
    assert propose(record.plan, record.trials) != weak.params


def test_nothing_to_choose_by_is_an_error(plan: Callable[..., SearchPlan]) -> None:
    with pytest.raises(ConfigError, match="there are none here: set data_args"):
        plan("validation_share=null")
    with pytest.raises(ConfigError, match="a search runs in one process"):
        plan("backend=MPI")


def test_a_folder_that_takes_no_search_is_named(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write into"):
        run_search(plan(), tmp_path / "file" / "below", trials=1)


def test_record_of_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no search at"):
        read_search(tmp_path)
    for content in ('{"op_code": 99}\n{}\n', "[]\n", "epsilon\nmu\n"):
        (tmp_path / JOURNAL_NAME).write_text(content)
        with pytest.raises(DataError, match="is not the journal of a search"):
            read_search(tmp_path)
    (tmp_path / JOURNAL_NAME).unlink()
    (tmp_path / OLD_NAME).write_text('{"record": "search"}')
    with pytest.raises(DataError, match="is not the record of a search"):
        read_search(tmp_path)


@pytest.mark.long
def test_several_processes_share_a_search(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    """The other is held in its first trial until this process has run the second, and is then killed."""
    started, done = get_context("fork").Pipe()

    class Held(SearchObserver):
        def trial_started(self, record: SearchRecord, trial: Trial) -> None:
            done.send(trial.number)
            time.sleep(3600)  # until it is killed

    shared = plan()
    other = get_context("fork").Process(target=lambda: run_search(shared, tmp_path, 3, [Held()]))
    other.start()
    try:
        assert started.recv() == 1
        record = run_search(shared, tmp_path, trials=2)
    finally:
        other.kill()
    other.join()
    assert [trial.state for trial in record.trials] == ["running", "finished"]
    counter = _Rounds()
    record = run_search(shared, tmp_path, 2, [counter])
    assert [trial.state for trial in record.trials] == ["finished", "finished"]
    assert {number for number, _ in counter.rounds} == {1}
    assert record.trials[0].params != record.trials[1].params


def test_points_that_others_are_at_are_kept_off(tiny_settings: SettingsFactory) -> None:
    record = made_up_search(made_up_plan(tiny_settings()), START_POINTS, near_three_tenths)
    alone = propose(record.plan, record.trials)
    assert alone is not None
    theirs = Trial(number=START_POINTS + 1, params=alone)
    beside = propose(record.plan, [*record.trials, theirs])
    assert beside is not None
    assert beside["eps"] != pytest.approx(alone["eps"], rel=1e-3) or beside["gamma"] != pytest.approx(alone["gamma"])


def test_optuna_s_own_tools_read_the_journal(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    record = made_up_search(made_up_plan(tiny_settings()), 3, near_three_tenths)
    written_down(record, tmp_path)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL_NAME)))
    study = optuna.load_study(study_name=STUDY, storage=storage)
    assert study.best_params == record.ranking[0].params
    assert study.best_value == record.ranking[0].validation_accuracy
    assert list(study.trials[0].intermediate_values.values()) == list(record.trials[0].curve)


def test_a_line_that_a_killed_process_tore_is_dropped(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    record = made_up_search(made_up_plan(tiny_settings()), 3, near_three_tenths)
    written_down(record, tmp_path)
    with (tmp_path / JOURNAL_NAME).open("a") as journal:
        journal.write('{"op_code":4,"worker')
    assert read_search(tmp_path) == record
    written_down(record, tmp_path)
    assert len(read_search(tmp_path).trials) == 6


def test_what_an_earlier_version_left_is_gone_on_with(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    record = made_up_search(plan(), 3, near_three_tenths)
    old = {"record": "search", "version": "0.2.0", **record.model_dump(mode="json")}
    (tmp_path / OLD_NAME).write_text(json.dumps(old))
    assert read_search(tmp_path) == record
    assert run_search(record.plan, tmp_path, trials=3) == record
    more = run_search(record.plan, tmp_path, trials=4)
    assert more.trials[:3] == record.trials
    assert more.trials[3].params == propose(record.plan, record.trials)
    with pytest.raises(ConfigError, match="holds another search"):
        run_search(plan("epochs=2"), tmp_path, trials=3)


def test_whole_numbers_run_out(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings("method=fedbabu")
    plan = made_up_plan(settings, {"finetune_epochs": Range(low=1, high=10, integer=True)})
    record = made_up_search(plan, 10, lambda params: -abs(params["finetune_epochs"] - 7))
    assert {trial.params["finetune_epochs"] for trial in record.trials} == set(range(1, 11))
    assert propose(plan, record.trials) is None


def test_refused_proposals_are_replaced(
    tiny_settings: SettingsFactory, plan: Callable[..., SearchPlan], tmp_path: Path
) -> None:
    """The sampler knows nothing of combinations; here it is drawn to a small alpha_0 below a large alpha_min."""
    ranges = {"alpha_0": Range(low=0.1, high=0.99), "alpha_min": Range(low=0.0, high=0.5)}
    record = made_up_search(
        made_up_plan(tiny_settings(), ranges), 14, lambda p: 50 + 40 * (p["alpha_min"] - p["alpha_0"])
    )
    assert all(trial.params["alpha_min"] <= trial.params["alpha_0"] for trial in record.trials)
    nothing = plan("dapper_args.params.dapperfl.alpha_min=0.9", names=("alpha_0",), ranges=("alpha_0=0.1:0.5",))
    with pytest.raises(ConfigError, match="method dapperfl refuses all of these ranges"):
        run_search(nothing, tmp_path, trials=1)


def test_trials_that_cannot_be_run_are_put_aside(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    layers = plan("method=fedper", names=(), ranges=("num_personal_layers=90:91",))
    record = run_search(layers, tmp_path, trials=3)
    assert [trial.state for trial in record.trials] == ["refused", "refused"]
    assert all("num_personal_layers" in trial.message for trial in record.trials)
    assert record.ranking == []
    assert propose(layers, [*record.trials] * START_POINTS) is None


@pytest.mark.parametrize("name", [BEST_NAME, "history.png"])
def test_results_are_written_into_no_pipe(tiny_settings: SettingsFactory, tmp_path: Path, name: str) -> None:
    record = made_up_search(made_up_plan(tiny_settings()), 1, near_three_tenths)
    os.mkfifo(tmp_path / name)
    reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)  # else a writer would wait for ever
    with pytest.raises(DataError, match=f"cannot write .*{name}: that is a pipe"):
        show_best(record, tmp_path, Console(quiet=True))
    os.close(reader)


def test_a_journal_is_no_pipe(plan: Callable[..., SearchPlan], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL_NAME)
    with pytest.raises(DataError, match=r"journal.log is a pipe, no journal of a search; remove it, or"):
        run_search(plan(), tmp_path, trials=1)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="fedml-dapper")


@pytest.mark.nightly
def test_command_searches_goes_on_and_draws_again(tmp_path: Path, tiny_settings: SettingsFactory) -> None:
    experiment, folder = tmp_path / "tiny.yaml", tmp_path / "search"
    experiment.write_text(tiny_settings(*QUICK).as_yaml())
    command = ("search", "-c", experiment, "--params", "eps", "--range", "gamma=0.001:0.1:log", "--output", folder)

    result = call(*command, "--trials", "2")

    assert result.exit_code == 0, result.output
    assert "trial 2/2" in result.stderr
    record = read_search(folder)
    best = record.ranking[0]
    assert f"Trial {best.number} on test images" in result.stdout
    assert f"{best.test_accuracy:.1f} %" in result.stdout
    names = {file.name for file in folder.iterdir()}
    assert names >= {JOURNAL_NAME, "best.yaml", "history.png", "history.pdf", "parameters.png", "parameters.pdf"}
    settings = load_settings([experiment, folder / "best.yaml"])
    assert settings.dapper_args.params["dapperfl"].items() >= best.params.items()

    (folder / "history.png").unlink()
    shutil.rmtree(folder / "trials")
    for again in (("search", "--output", folder), (*command, "--trials", "2")):
        repeated = call(*again)
        assert repeated.exit_code == 0, repeated.output
        assert repeated.stdout == result.stdout
        assert (folder / "history.png").exists()
        (folder / "history.png").unlink()
    assert not (folder / "trials").exists()
    assert read_search(folder) == record


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--params", "epss"), "did you mean `eps`?"),
        (("--params", "eps", "--seeds", "one"), "--seeds one: expected whole numbers"),
        (("--params", "eps", "--seeds", "1,"), "--seeds 1,: expected whole numbers"),
        (("--params", "eps", "--seeds", "1,2,01"), "--seeds 1,2,01: `1` is there twice; give it once"),
        (("--params", "eps", "--seeds", "4294967296"), "--seeds 4294967296: the largest seed is 4294967295"),
        (("--params", "eps", "--seeds", "9" * 5000), "the largest seed is 4294967295"),
        (("--params", "eps", "--set", "validation_share=null"), "set data_args.validation_share"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, tiny_settings: SettingsFactory, arguments: tuple[str, ...], message: str
) -> None:
    experiment, folder = tmp_path / "tiny.yaml", tmp_path / "search"
    experiment.write_text(tiny_settings(*QUICK).as_yaml())
    result = call("search", "-c", experiment, *arguments, "--output", folder)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not folder.exists()


def test_interrupted_command_says_how_to_go_on(
    tmp_path: Path, tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tmp_path / "tiny.yaml"
    experiment.write_text(tiny_settings(*QUICK).as_yaml())

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search_module, "simulate", interrupt)
    result = call("search", "-c", experiment, "--params", "eps", "--output", tmp_path / "search")
    assert result.exit_code == 130
    assert "The same command goes on" in result.stdout
    assert [trial.state for trial in read_search(tmp_path / "search").trials] == ["running"]


class _Rounds(SearchObserver):
    """Which rounds were run."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self._trial = 0

    def trial_started(self, record: SearchRecord, trial: Trial) -> None:
        self._trial = trial.number

    def round_finished(self, record: RoundRecord) -> None:
        self.rounds.append((self._trial, record.round))


class _KillIn(_Rounds):
    """Ends the process without any goodbye, in the middle of a round."""

    def __init__(self, trial: int, round_: int) -> None:
        super().__init__()
        self._when = (trial, round_)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        if (self._trial, round_) == self._when:
            os.kill(os.getpid(), signal.SIGKILL)


def _without_seconds(folder: Path) -> str:
    return SECONDS.sub("", read_search(folder).model_dump_json())


MINE = """
from pydantic import Field
from fedml_dapper.methods import FedAvg, MethodParams


class Params(MethodParams):
    beta: float = Field(default=0.5, ge=0, le=1)


class Mine(FedAvg):
    name = "mine"
    Params = Params
"""


def test_a_method_of_one_s_own_is_searched_and_the_best_file_names_it(
    tmp_path: Path, tiny_settings: SettingsFactory
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    experiment, folder = tmp_path / "tiny.yaml", tmp_path / "search"
    experiment.write_text(tiny_settings(*QUICK, "comm_round=1").as_yaml())
    method = f"{tmp_path / 'mine.py'}:Mine"
    asked = ("--set", f"method={method}", "--range", "beta=0.1:0.9", "--trials", "1", "--output", folder)
    result = call("search", "-c", experiment, *asked)
    assert result.exit_code == 0, result.output
    found = load_settings([experiment, folder / "best.yaml"]).dapper_args
    assert found.method == method
    assert 0.1 <= found.params["mine"]["beta"] <= 0.9
