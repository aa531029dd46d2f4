"""What a FedML program shows of its run, as the command line does: notes, rounds as they end, and where results are.

A program that begins with :func:`fedml_dapper.platform.init` does; what the command line starts is shown by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedml.arguments import Arguments
from rich.console import Console

from fedml_dapper.evaluation import progress_for, result_table, summarise
from fedml_dapper.evaluation.last_report import report_of_finished
from fedml_dapper.evaluation.log_lines import show_log
from fedml_dapper.evaluation.terminal import say, say_place
from fedml_dapper.federation import LEDGER_NAME, SETTINGS_NAME, Experiment, RunObserver, read_ledger, read_unfinished

_SHOWN = "dapper_is_shown"


def show(args: Arguments, notes: Sequence[str]) -> None:
    """Make the program of ``args`` one that shows its run; ``notes`` are of its experiment file."""
    setattr(args, _SHOWN, True)
    rank = int(args.rank)
    show_log("server" if rank == 0 else f"rank {rank}", "text")
    if rank == 0:
        for note in notes:
            say(_console(), f"note: {note}")


def rounds_shown(args: Arguments, experiment: Experiment, run_dir: Path) -> list[RunObserver]:
    """Who shows the rounds, if anybody does; says before them what is to be known of the run."""
    if not vars(args).get(_SHOWN):
        return []
    console = _console()
    for note in experiment.notes:
        say(console, f"note: {note}")
    say_place(console, "All settings", run_dir / SETTINGS_NAME)
    return [progress_for(console, experiment)]


def results_shown(args: Arguments, run_dir: Path) -> None:
    """Write the report of a run that is over, and say what came of it, and where that is."""
    begun = read_unfinished(run_dir / LEDGER_NAME)
    if not vars(args).get(_SHOWN) or begun is None or not begun[1]:
        return
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    console = _console()
    report = report_of_finished(run_dir, console)
    console.print(result_table(summarise(record, rounds), record))
    if report is not None:
        say_place(console, "Report", report.absolute())


def _console() -> Console:
    return Console(stderr=True)
