"""The ``fedml-dapper`` command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from fedml_dapper import __version__
from fedml_dapper.benches.command import bench
from fedml_dapper.benches.report import write_bench_report
from fedml_dapper.benches.results import MANIFEST_NAME
from fedml_dapper.config import LevelArgs, ModelArgs, PruningArgs, Settings, TrainArgs, check, load_settings
from fedml_dapper.console import progress_for
from fedml_dapper.credentials import read_credentials
from fedml_dapper.datasets import SUITES, contact_sheet, data_root, find_domains, load_suite, pack
from fedml_dapper.doctor import doctor
from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.evaluation import (
    RunSummary,
    footprint_table,
    personal_table,
    result_table,
    summarise,
    write_report,
)
from fedml_dapper.evaluation.round_profile import PROFILE_NAME, RoundProfiler
from fedml_dapper.evaluation.search_command import search
from fedml_dapper.federation import (
    LEDGER_NAME,
    MODEL_NAME,
    REPORT_NAME,
    SETTINGS_NAME,
    LevelFootprint,
    build_experiment,
    is_finished,
    level_footprints,
    open_run_dir,
    read_ledger,
    read_unfinished,
)
from fedml_dapper.interruption import INTERRUPTED, ending_in_order, hurry, take_time
from fedml_dapper.methods import DapperFL, Task
from fedml_dapper.models import BACKBONES, build_backbone
from fedml_dapper.profiling import Profiler


class _PoliteGroup(click.Group):
    """Turns our own errors into one line on stderr and exit code 2, interruptions into one and 130."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            with ending_in_order("fedml-dapper"):
                return super().invoke(ctx)
        except DapperError as error:
            click.echo(f"fedml-dapper: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_PoliteGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedml-dapper")
def main() -> None:
    """DapperFL on FedML: federated learning on physically pruned models under domain shift."""


_config_option = click.option(
    "-c", "--config", "configs", type=click.Path(path_type=Path), multiple=True, required=True,
    help="Experiment file; give several to lay later ones over earlier ones.",
)  # fmt: skip
_set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting, e.g. --set comm_round=5."
)
resume_option = click.option(
    "--resume", is_flag=True,
    help="Go on with the run in the --output folder after its last checkpoint; start one where there is none.",
)  # fmt: skip
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")


@main.command()
@_config_option
@_set_option
@_json_option
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for this run; by default a new one below output_dir."
)
@resume_option
@click.option(
    "--profile",
    is_flag=True,
    help=f"Say where the rounds' seconds went, and write {PROFILE_NAME}. With several processes: the server's own.",
)
def run(
    configs: Sequence[Path], overrides: Sequence[str], as_json: bool, output: Path | None, resume: bool, profile: bool
) -> None:  # fmt: skip
    """Train the federation of an experiment file through FedML's runner."""
    run_experiment(configs, overrides, as_json, output, resume=resume, profile=profile)


def run_experiment(
    configs: Sequence[Path],
    overrides: Sequence[str] = (),
    as_json: bool = False,
    output: Path | None = None,
    rank: int = 0,
    resume: bool = False,
    profile: bool = False,
) -> None:
    """Run an experiment from first check to report, or this process's part of it where there are several.

    The body of ``run`` and of ``python -m fedml_dapper``; ``rank`` counts for silos, MPI knows its own.
    """
    settings = load_settings(configs, overrides)
    if settings.comm_args.backend == "MPI":
        rank = _mpi_rank()
    if settings.comm_args.backend == "DAPPER_GRPC" and settings.comm_args.dapper_grpc is not None:
        read_credentials(settings.comm_args.dapper_grpc, rank)  # said now rather than after the data is loaded
    if rank > 0:
        _run_client(configs[0], settings, rank)
        return
    console = Console(stderr=as_json)
    with redirect_stdout(sys.stderr):  # FedML prints as it likes
        experiment = build_experiment(settings)
    console.print(Syntax(settings.as_yaml(), "yaml", background_color="default"))
    footprints = level_footprints(experiment.method, settings.dapper_args.levels)
    console.print(footprint_table(footprints, f"{settings.model_args.model} per level"))
    for note in experiment.notes:
        console.print(f"note: {note}", soft_wrap=True)
    run_dir = open_run_dir(experiment, output, resume)
    if is_finished(run_dir, experiment) and settings.comm_args.backend == "sp":  # under MPI the others wait to be told
        console.print(f"The run in {run_dir} is finished already.", soft_wrap=True)
        _finish(run_dir, console, as_json)
        return
    interrupted = False
    profiler = Profiler(experiment.device)
    watcher = RoundProfiler(profiler, settings.device_args.precision)
    try:
        with redirect_stdout(sys.stderr):
            from fedml_dapper.platform.launch import run_federation  # noqa: PLC0415  # slow: after the checks

            _show_log("server")
            observers = [progress_for(console, experiment), *([watcher] if profile else [])]
            with profiler.active() if profile else nullcontext():
                run_federation(configs[0], experiment, rank, run_dir, observers, resume)
    except KeyboardInterrupt:
        interrupted = True
        take_time()
    rounds = watcher.profile()
    if rounds is not None:
        rounds.save(run_dir / PROFILE_NAME)
        console.print(rounds.table())
    _finish(run_dir, console, as_json, interrupted)


def _run_client(config: Path, settings: Settings, rank: int) -> None:
    with redirect_stdout(sys.stderr):
        experiment = build_experiment(settings)
        from fedml_dapper.platform.launch import run_federation  # noqa: PLC0415  # slow: after the checks

        _show_log(f"rank {rank}")
        run_federation(config, experiment, rank)


def _mpi_rank() -> int:
    try:
        from mpi4py import MPI  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(f"comm_args.backend MPI needs mpi4py ({error}); pip install 'fedml-dapper[mpi]'") from error
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ConfigError("comm_args.backend MPI needs 2 processes or more; start it with run/mpi.sh CONFIG -n 3")
    return int(MPI.COMM_WORLD.Get_rank())


def _show_log(who: str) -> None:
    """Our own log lines on stderr; FedML's stay below warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who}: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("fedml_dapper")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _finish(run_dir: Path, console: Console, as_json: bool, interrupted: bool = False) -> None:
    ledger, report = run_dir / LEDGER_NAME, run_dir / REPORT_NAME
    begun = read_unfinished(ledger)
    if interrupted and (begun is None or not begun[1]):
        console.print(f"Stopped before the first round was finished. Saved: {run_dir / SETTINGS_NAME}", soft_wrap=True)
        _leave(run_dir, console)
    record, rounds = read_ledger(ledger)
    summary = summarise(record, rounds)
    _write_report(run_dir, report)
    if as_json:
        document = summary.model_dump(mode="json") | {"ledger": str(ledger), "report": str(report)}
        sys.stdout.write(TypeAdapter(dict).dump_json(document).decode() + "\n")
    else:
        console.print(result_table(summary, record))
        if summary.personal is not None:
            console.print(personal_table(summary.personal, record))
        console.print(f"Report: {report.absolute()}", soft_wrap=True)
    if interrupted:
        saved = [name for name in (LEDGER_NAME, MODEL_NAME, REPORT_NAME) if (run_dir / name).exists()]
        console.print(
            f"Stopped after {len(rounds)} finished rounds. Saved in {run_dir}: {', '.join(saved)}", soft_wrap=True
        )
        _leave(run_dir, console)


def _leave(run_dir: Path, console: Console) -> NoReturn:
    console.print(f"The same command with --output {run_dir} --resume goes on from there.", soft_wrap=True)
    hurry()
    sys.exit(INTERRUPTED)


def _write_report(run_dir: Path, path: Path) -> RunSummary:
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    settings = check(Settings, record.settings, where=str(run_dir / LEDGER_NAME))
    try:
        sheet = contact_sheet(load_suite(settings.data_args))
    except DataError as error:
        click.echo(f"fedml-dapper: the report goes without sample images: {error}", err=True)
        sheet = None
    write_report(path, record, rounds, sheet)
    return summarise(record, rounds)


main.add_command(bench)
main.add_command(doctor)
main.add_command(search)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the HTML report of a run's folder from its ledger, or of a bench's folder from its cells' ledgers."""
    if (folder / MANIFEST_NAME).exists():
        path = write_bench_report(folder)
    else:
        path = folder / REPORT_NAME
        _write_report(folder, path)
    click.echo(path.absolute())


@main.command()
@click.option("--model", required=True, type=click.Choice(sorted(BACKBONES)))
@click.option("--input", "input_size", type=click.IntRange(min=8), default=32, show_default=True, help="Image side.")
@click.option("--width", type=click.IntRange(min=1), help="Channels of the first layer; as published when absent.")
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--scope", type=click.Choice(["internal", "grouped"]), default="internal", show_default=True)
@click.option(
    "--ratio-of", type=click.Choice(["parameters", "flops", "channels"]), default="parameters", show_default=True
)
@click.option("--round-to", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--ratios", default="0,0.2,0.4,0.6,0.8", show_default=True, help="Pruning ratio of each level.")
@_json_option
def footprint(
    model: str, input_size: int, width: int | None, classes: int, scope: str, ratio_of: str, round_to: int, ratios: str,
    as_json: bool,
) -> None:  # fmt: skip
    """What each capability level trains and sends under DapperFL: parameters, MACs, bytes each way."""
    levels = check(LevelArgs, {"ratios": ratios.split(",")}, where="--ratios")
    rows = _footprints(
        ModelArgs(model=model, width=width), input_size, classes, levels,
        check(PruningArgs, {"scope": scope, "ratio_of": ratio_of, "round_to": round_to}, where="options"),
    )  # fmt: skip
    if as_json:
        click.echo(TypeAdapter(list[LevelFootprint]).dump_json(list(rows)))
    else:
        shape = f"{model}, width {width or BACKBONES[model].width}, {input_size}x{input_size} images"
        title = f"{shape}, {scope} scope, ratio of {ratio_of}"
        Console().print(footprint_table(rows, title))


def _footprints(
    model: ModelArgs, input_size: int, classes: int, levels: LevelArgs, pruning: PruningArgs
) -> tuple[LevelFootprint, ...]:
    backbone = build_backbone(model, classes, 0, input_size)
    task = Task(backbone, input_size, TrainArgs(), pruning, uniform_weights=False, seed=0)
    return level_footprints(DapperFL(DapperFL.check_params({}), task), levels)


@main.group()
def data() -> None:
    """Look for data, and pack it."""


@data.command("check")
@click.option("--root", type=click.Path(path_type=Path), help="Root of the data; default: DAPPER_DATA, else data/.")
@click.option("--dataset", type=click.Choice(sorted(SUITES)), help="One suite only.")
@_json_option
def check_data(root: Path | None, dataset: str | None, as_json: bool) -> None:
    """Say which domains were found, where, and how many images they have; exit code 2 if a chosen suite lacks one."""
    where = data_root(root)
    rows = [row for name in ([dataset] if dataset else SUITES) for row in find_domains(name, where)]
    if as_json:
        click.echo(TypeAdapter(list[dict[str, object]]).dump_json([asdict(row) for row in rows]))
    else:
        table = Table(title=f"Data below {where.absolute()}")
        for column in ("suite", "domain", "train", "test", "found in"):
            table.add_column(column, justify="right" if column in ("train", "test") else "left")
        for row in rows:
            found = row.problem or row.source or f"missing: looked for {', '.join(row.looked_in)}"
            if row.is_subset:
                found += " (subset)"
            table.add_row(row.suite, row.domain, str(row.num_train), str(row.num_test), found)
        Console().print(table)
    if dataset and any(row.source is None for row in rows):
        raise DataError(f"{dataset} is incomplete below {where.absolute()}; data/README.md says how to get it")


@data.command("pack")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("suite")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder for the packed files.")
@click.option("--size", type=click.IntRange(min=1), default=64, show_default=True, help="Side of the packed images.")
def pack_data(source: Path, suite: str, out: Path, size: int) -> None:
    """Pack SOURCE/SUITE/<domain>/<class>/* into one .npz file per domain."""
    for file in pack(source, suite, out, size):
        click.echo(file)
