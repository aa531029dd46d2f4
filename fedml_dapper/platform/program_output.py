"""Terminal output of a FedML program, the same as the command line's: notes, rounds as they end, and results.

It is switched on by :func:`fedml_dapper.platform.init`; for runs that the command line starts, commands do the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml.arguments import Arguments
from rich.console import Console

from fedml_dapper.evaluation import progress_for, result_table, summarise
from fedml_dapper.evaluation.last_report import report_of_finished
from fedml_dapper.evaluation.terminal import say, say_place
from fedml_dapper.federation import LEDGER_NAME, SETTINGS_NAME, Experiment, RunObserver, read_ledger, read_unfinished
from fedml_dapper.process.log import show_log

_SHOWN = "dapper_is_shown"


def show(args: Arguments, notes: Sequence[str]) -> None:
    """Switch on the output of the program of ``args``, and print the ``notes`` on its experiment file."""
    setattr(args, _SHOWN, True)
    rank = int(args.rank)
    show_log("server" if rank == 0 else f"rank {rank}", "text")
    if rank == 0:
        for note in notes:
            say(_console(), f"note: {note}")


def rounds_shown(args: Arguments, experiment: Experiment, run_dir: Path) -> list[RunObserver]:
    """Return the observer that prints rounds, if output is on, and print the experiment's notes before them."""
    if not vars(args).get(_SHOWN):
        return []
    console = _console()
    for note in experiment.notes:
        say(console, f"note: {note}")
    say_place(console, "All settings", run_dir / SETTINGS_NAME)
    return [progress_for(console, experiment)]


def results_shown(args: Arguments, run_dir: Path) -> None:
    """Write the report of a run that is over, and print its results and where the report is, if output is on."""
    begun = read_unfinished(run_dir / LEDGER_NAME)
    if not vars(args).get(_SHOWN) or begun is None or not begun[1]:
        return
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    console = _console()
    report = report_of_finished(run_dir, console)
    summary = summarise(record, rounds)
    console.print(result_table(summary, record))
    if report is not None:
        say_place(console, "Report", report.absolute())
    if summary.not_finite is not None:
        say(console, summary.not_finite)


def _console() -> Console:
    return Console(stderr=True)
