"""Runs that are given more rounds: ``comm_round`` raised with ``--resume``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import write_run_report
from fedml_dapper.federation import (
    LEDGER_NAME,
    SETTINGS_NAME,
    build_experiment,
    is_finished,
    open_run_dir,
    read_ledger,
    simulate,
)
from fedml_dapper.federation.run_folder.ledger import read_unfinished
from fedml_dapper.federation.run_folder.records import RunRecord, Stretch
from fedml_dapper.methods import METHODS, Method

from ..grids import METHODS_OF_EVERY_KIND, ON_ANY_NETWORK, sampled
from .interruptions import FEW, Ended, assert_same_held, resumed, run_until
from .undisturbed import UndisturbedRuns

SettingsFactory = Callable[..., Settings]
QUICK = ("dapperfl", "scaffold", "fedavgm", "pfedsim")
"""Of which one has clients that remember, one a server that does, and one depends on how many rounds there are."""


@pytest.mark.parametrize(
    "method",
    sampled(
        [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in ON_ANY_NETWORK],
        always=(*METHODS_OF_EVERY_KIND, *QUICK),
    ),
)
def test_an_extended_run_is_the_longer_one_or_is_refused(
    undisturbed: UndisturbedRuns, tiny_settings: SettingsFactory, tmp_path: Path, method: str
) -> None:
    whole = undisturbed(method)
    long = build_experiment(whole.settings)
    train_args = whole.settings.train_args.model_copy(update={"comm_round": 2})
    short = build_experiment(whole.settings.model_copy(update={"train_args": train_args}))
    extended = tmp_path / "extended"
    first, _ = simulate(short, run_dir=extended)
    if reason := long.method.depends_on_comm_round:
        with pytest.raises(
            ConfigError, match="holds a run of 2 rounds, of which 3 rounds would be no continuation"
        ) as told:
            simulate(long, run_dir=extended, resume=True)
        assert reason in str(told.value)
        return
    server, records = resumed(long.settings, extended)
    assert [record.round for record in records] == [1, 2, 3]
    after = Ended(server.checkpoint(), extended)
    assert after.rounds == whole.rounds
    assert after.model_file == whole.model_file
    assert_same_held(after.held, whole.held)
    assert first.state.round == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_reads_how_many_rounds_there_are_says_so(method: str) -> None:
    source = "".join(
        Path(module).read_text()
        for kind in METHODS[method].__mro__
        if issubclass(kind, Method) and kind is not Method
        for module in [__import__(kind.__module__, fromlist=["_"]).__file__]
    )
    assert ("training.comm_round" in source) == (
        METHODS[method].depends_on_comm_round is not Method.depends_on_comm_round
    )


@pytest.mark.nightly
def test_ledger_settings_and_report_say_what_became_of_it(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    run_dir, few = tmp_path / "run", (*FEW, "method=fedavg", "width=2")
    two, three, six = (build_experiment(tiny_settings(*few, f"comm_round={rounds}")) for rounds in (2, 3, 6))
    simulate(two, run_dir=run_dir)
    assert (is_finished(run_dir, two), is_finished(run_dir, three)) == (True, False)
    first = read_ledger(run_dir / LEDGER_NAME)[0]
    assert (first.comm_round, first.earlier) == (2, ())

    simulate(three, run_dir=run_dir, resume=True)
    assert (is_finished(run_dir, three), is_finished(run_dir, six)) == (True, False)
    run_until(5, six.settings, run_dir)  # and is cut short
    resumed(six.settings, run_dir)
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    assert (record.comm_round, len(rounds), is_finished(run_dir, six)) == (6, 6, True)
    version = record.version
    assert record.earlier == (
        Stretch(rounds=2, comm_round=2, version=version), Stretch(rounds=3, comm_round=3, version=version),
    )  # fmt: skip
    assert record.model_copy(update={"earlier": ()}) == six.record()
    assert (run_dir / SETTINGS_NAME).read_text() == six.settings.as_yaml()
    before = (run_dir / LEDGER_NAME).read_bytes()
    resumed(six.settings, run_dir)
    assert (run_dir / LEDGER_NAME).read_bytes() == before
    report = write_run_report(run_dir).read_text()
    assert "Not finished" not in report
    assert "up to round 3: 3 rounds asked for" in report


@pytest.mark.long
def test_another_version_that_goes_on_with_it_is_noted(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "method=fedavg", "width=2"))
    run_until(3, experiment.settings, tmp_path)
    first, *rest = (tmp_path / LEDGER_NAME).read_text().splitlines(keepends=True)
    content = json.loads(first) | {"version": "0.0.9"}
    del content["earlier"]  # as versions before had it
    (tmp_path / LEDGER_NAME).write_text(json.dumps(content) + "\n" + "".join(rest))
    resumed(experiment.settings, tmp_path)
    record = read_ledger(tmp_path / LEDGER_NAME)[0]
    assert record.version == RunRecord.model_validate(experiment.record().model_dump()).version
    assert record.earlier == (Stretch(rounds=2, comm_round=4, version="0.0.9"),)


def test_a_run_is_not_shortened(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    longer, shorter = (
        build_experiment(tiny_settings(*FEW, "method=fedavg", "width=2", f"comm_round={rounds}")) for rounds in (4, 3)
    )
    run_until(2, longer.settings, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"a run of 4 rounds, and .*comm_round is 3 here: .* not shortened"):
        open_run_dir(shorter, tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    found = read_unfinished(tmp_path / LEDGER_NAME)
    assert found is not None
    assert len(found[1]) == 1
