"""A search on the terminal: its progress and its result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from fedml_dapper.config import to_yaml
from fedml_dapper.federation import RoundRecord, RunRecord
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.search.record import SearchPlan, SearchRecord, Trial
from fedml_dapper.search.search_figures import count, describe, save_figures
from fedml_dapper.search.space import Number
from fedml_dapper.search.trials import SearchObserver

BEST_NAME = "best.yaml"
_LISTED = 10
_LINE_EVERY_S = 30.0


def show_best(record: SearchRecord, folder: Path, console: Console) -> None:
    """Print the best trials as a table, draw their figures, and write the best one as an experiment file."""
    if not record.ranking:
        console.print("No trial is finished yet.")
        return
    console.print(best_table(record))
    best = record.ranking[0]
    console.print(
        f"Trial {best.number} on test images, in the round chosen on validation images: {best.test_accuracy:.1f} %"
        " (the search did not look at it).",
        highlight=False,
        soft_wrap=True,
    )
    with written_whole(folder / BEST_NAME) as scratch:
        scratch.write_text(to_yaml(record.plan.overlay(best.params)), encoding="utf-8")
    console.print(f"Its settings, to be laid over the experiment by another -c: {folder / BEST_NAME}", soft_wrap=True)
    files = save_figures(record, folder)
    console.print(f"Figures: {', '.join(str(file) for file in files)}", soft_wrap=True)


def best_table(record: SearchRecord) -> Table:
    """Return a table of the best trials, the best first."""
    seeds = record.plan.seeds
    over = "" if len(seeds) == 1 else ", mean over the seeds"
    table = Table(title=escape(f"{describe(record.plan)}: the best of {count(record.measured, 'trial')}"))
    for heading in ("trial", *record.plan.ranges, f"validation accuracy (%){over}", "in round"):
        table.add_column(heading, justify="right")
    for trial in record.ranking[:_LISTED]:
        rounds = ", ".join(str(result.chosen_round) for result in trial.results)
        values = [_short(trial.params[name]) for name in record.plan.ranges]
        table.add_row(str(trial.number), *values, f"{trial.validation_accuracy:.2f}", rounds)
    aside = (("stopped early", "pruned"), ("refused", "refused"))
    counts = {words: [trial for trial in record.trials if trial.state == state] for words, state in aside}
    table.caption = "; ".join(f"{words}: {count(trials, 'trial')}" for words, trials in counts.items() if trials)
    return table


def _short(value: Number) -> str:
    return f"{value:.4g}"


class SearchProgress(SearchObserver):
    """Shows a live line on a terminal, else prints a line per trial and one now and then."""

    def __init__(self, console: Console, plan: SearchPlan, trials: int) -> None:
        self._console = console
        self._trials = trials
        self._rounds = plan.rounds
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=trials * plan.rounds)
        self._trial = 0
        self._round = 0
        self._best = ""
        self._gained = 0
        """Rounds since the command started."""
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> SearchProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def trial_started(self, record: SearchRecord, trial: Trial) -> None:
        self._trial = trial.number
        self._round = 0
        self._best = _best(record)
        self._show()

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        self._round += len(rounds)

    def round_finished(self, record: RoundRecord) -> None:
        self._round += 1
        self._gained += 1
        self._show()

    def trial_over(self, record: SearchRecord, trial: Trial) -> None:
        self._round = self._rounds  # a trial that was stopped early counts as whole
        values = "  ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
        outcome = f"{trial.validation_accuracy:.1f} %" if trial.results else f"refused: {trial.message}"
        if trial.state == "pruned":
            outcome += ", stopped early"
        self._print(f"trial {trial.number}/{self._trials}  {values}  {outcome}{_best(record)}  ETA {self._to_go()}")

    def _show(self) -> None:
        where = f"trial {self._trial}/{self._trials}  round {self._round}/{self._rounds}"
        text = f"{where}{self._best}  ETA {self._to_go()}"
        self._bar.update(self._task, description=text, completed=self._done())
        silent_s = time.monotonic() - self._printed
        if not self._console.is_terminal and silent_s >= _LINE_EVERY_S and self._round < self._rounds:
            self._print(text)

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True)

    def _done(self) -> int:
        return (self._trial - 1) * self._rounds + self._round

    def _to_go(self) -> str:
        if self._gained == 0:
            return "-"
        left = self._trials * self._rounds - self._done()
        return str(timedelta(seconds=round((time.monotonic() - self._started) / self._gained * left)))


def _best(record: SearchRecord) -> str:
    return f"  best {record.ranking[0].validation_accuracy:.1f} %" if record.ranking else ""
