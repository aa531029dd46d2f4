"""One experiment from first check to report: the body of ``run`` and ``python -m fedml_dapper``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import NoReturn

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.syntax import Syntax

from fedml_dapper.config import Loaded, SecureGrpcConfig, Settings, load_with_notes
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import (
    device_table,
    experiment_tables,
    personal_table,
    progress_for,
    result_table,
    summarise,
)
from fedml_dapper.evaluation.last_report import report_of_finished
from fedml_dapper.evaluation.log_lines import RoundLines
from fedml_dapper.evaluation.round_profile import PROFILE_NAME, RoundProfiler
from fedml_dapper.evaluation.terminal import say, say_place
from fedml_dapper.federation import (
    LEDGER_NAME,
    MODEL_NAME,
    REPORT_NAME,
    SETTINGS_NAME,
    build_experiment,
    is_finished,
    open_run_dir,
    read_ledger,
    read_unfinished,
)
from fedml_dapper.federation.privacy.promises import Promises
from fedml_dapper.one_process import run_in_one_process
from fedml_dapper.process.interruption import (
    INTERRUPTED,
    ignore_further_interruptions,
    reraising_interruption,
    take_time,
)
from fedml_dapper.process.log import LogFormat, show_log
from fedml_dapper.process.profiling import Profiler


def run_experiment(
    configs: Sequence[Path],
    overrides: Sequence[str] = (),
    as_json: bool = False,
    output: Path | None = None,
    rank: int = 0,
    as_edge: bool = False,
    resume: bool = False,
    restart: bool = False,
    profile: bool = False,
    verbose: bool = False,
    log_format: LogFormat = "text",
    by_fedml: bool = True,
) -> None:
    """Run an experiment from first check to report, or this process's part of it where there are several.

    Args:
        configs: Experiment files, merged left to right.
        overrides: ``key=value`` texts, applied last.
        as_json: Whether to print one JSON document on stdout, and everything else on stderr.
        output: Folder of the run.
        rank: Rank of this process, for silos and edges; MPI knows its own.
        as_edge: Whether this process has to be an edge.
        restart: Whether to delete the run in ``output`` first.
        by_fedml: Whether FedML's runner starts every run. Without it, it starts only what needs it: several processes,
            or FedML's platform.

    Raises:
        ConfigError: The settings, the rank or the run's folder do not fit.
    """
    if resume and restart:
        raise ConfigError("--resume goes on with a run, --restart begins it anew; give one of the two")
    loaded = load_with_notes(configs, overrides)
    settings = loaded.settings
    if settings.comm_args.backend == "MPI":
        rank = _mpi_rank()
    _check_place(settings, rank, as_edge)
    if settings.comm_args.backend == "DAPPER_GRPC" and settings.comm_args.dapper_grpc is not None:
        _check_who_is_who(settings.comm_args.dapper_grpc, rank)
    if rank > 0:
        if restart:
            Promises(output or settings.dapper_args.output_dir, rank).forget()
        _run_client(configs, loaded, rank, output, log_format)
        return
    console = Console(stderr=as_json)
    with redirect_stdout(sys.stderr):  # FedML prints to stdout
        experiment = build_experiment(settings)
    if verbose:
        console.print(Syntax(settings.as_yaml(), "yaml", background_color="default"))
    console.print(experiment_tables(experiment))
    for note in (*loaded.notes, *experiment.notes):
        say(console, f"note: {note}")
    run_dir = open_run_dir(experiment, output, resume, restart)
    say_place(console, "All settings", run_dir / SETTINGS_NAME)
    if (
        is_finished(run_dir, experiment) and settings.comm_args.backend == "sp"
    ):  # under MPI the other ranks wait for messages
        say(console, f"The run in {run_dir} is finished already.")
        _finish(run_dir, console, as_json)
        return
    interrupted = False
    profiler = Profiler(experiment.device)
    watcher = RoundProfiler(profiler, settings.device_args.precision)
    try:
        with redirect_stdout(sys.stderr), reraising_interruption():
            show_log("server", log_format)
            headline = experiment.method.problem.task.headline
            rounds_shown = RoundLines(headline) if log_format == "json" else progress_for(console, experiment)
            observers = [rounds_shown, *([watcher] if profile else [])]
            with profiler.active() if profile else nullcontext():
                if by_fedml or settings.comm_args.backend != "sp" or settings.tracking_args.using_mlops:
                    from fedml_dapper.platform.launch import run_federation  # loads slowly, so only after the checks

                    run_federation(configs, loaded.sections, experiment, rank, run_dir, observers, resume)
                else:
                    run_in_one_process(experiment, run_dir, observers, resume)
    except KeyboardInterrupt:
        interrupted = True
        take_time()
    rounds = watcher.profile()
    if rounds is not None:
        rounds.save(run_dir / PROFILE_NAME)
        console.print(rounds.table())
    _finish(run_dir, console, as_json, interrupted)


def _run_client(configs: Sequence[Path], loaded: Loaded, rank: int, output: Path | None, log_format: LogFormat) -> None:
    with redirect_stdout(sys.stderr):
        if loaded.settings.common_args.training_type == "cross_device":  # FedML has no client for it
            from fedml_dapper.device.program import run_device

            show_log(f"rank {rank}", log_format)
            run_device(loaded.settings, rank, output)
            return
        experiment = build_experiment(loaded.settings, rank=rank)
        from fedml_dapper.platform.launch import run_federation  # loads slowly, so only after the checks

        show_log(f"rank {rank}", log_format)
        run_federation(configs, loaded.sections, experiment, rank, output)


def _check_place(settings: Settings, rank: int, as_edge: bool) -> None:
    """Check that the experiment has such a process.

    Raises:
        ConfigError: It has not.
    """
    count = settings.train_args.client_num_in_total
    edges = [edge.rank for edge in settings.comm_args.edges]
    if as_edge and rank not in edges:
        raise ConfigError(f"--role edge --rank {rank}: comm_args.dapper_grpc.edges has the ranks {edges}")
    if rank > count and not settings.common_args.is_simulation and rank not in edges:
        raise ConfigError(f"--rank {rank}: train_args.client_num_in_total is {count}, and no edge has this rank")


def _check_who_is_who(config: SecureGrpcConfig, rank: int) -> None:
    """Read certificates and the list of members now, so that a mistake shows before the data are loaded."""
    from fedml_dapper.operations import read_membership
    from fedml_dapper.operations.credentials import read_credentials

    read_credentials(config, rank)
    if config.members_file is not None and (rank == 0 or config.edge(rank) is not None):
        read_membership(config.members_file)


def _mpi_rank() -> int:
    try:
        from mpi4py import MPI  # an extra
    except ImportError as error:
        raise ConfigError(f"comm_args.backend MPI needs mpi4py ({error}); pip install 'fedml-dapper[mpi]'") from error
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ConfigError("comm_args.backend MPI needs 2 processes or more; start it with run/mpi.sh CONFIG -n 3")
    return int(MPI.COMM_WORLD.Get_rank())


def _finish(run_dir: Path, console: Console, as_json: bool, interrupted: bool = False) -> None:
    ledger = run_dir / LEDGER_NAME
    begun = read_unfinished(ledger)
    if begun is None or not begun[1]:  # no round was finished: interrupted, or ended by the operator
        say(console, f"Stopped before the first round was finished. Saved: {run_dir / SETTINGS_NAME}")
        _leave(run_dir, console)
    record, rounds = read_ledger(ledger)
    summary = summarise(record, rounds)
    report = report_of_finished(run_dir, console)
    if as_json:
        document = summary.model_dump(mode="json") | {"ledger": str(ledger), "report": report and str(report)}
        click.echo(TypeAdapter(dict).dump_json(document))
    else:
        console.print(result_table(summary, record))
        if summary.personal is not None:
            console.print(personal_table(summary.personal, record))
        if summary.devices is not None:
            console.print(device_table(summary.devices, record))
        elif summary.tested_rounds and len(record.footprints) > 1:
            say(console, "What each level's devices get was not measured; --set devices=true measures it.")
        if report is not None:
            say_place(console, "Report", report.absolute())
    if summary.not_finite is not None:
        say(console, summary.not_finite)
    if interrupted:
        saved = [name for name in (LEDGER_NAME, MODEL_NAME, REPORT_NAME) if (run_dir / name).exists()]
        say(console, f"Stopped after {len(rounds)} finished rounds. Saved in {run_dir}: {', '.join(saved)}")
        _leave(run_dir, console)


def _leave(run_dir: Path, console: Console) -> NoReturn:
    say(console, f"The same command with --output {run_dir} --resume goes on from there.")
    ignore_further_interruptions()
    sys.exit(INTERRUPTED)
