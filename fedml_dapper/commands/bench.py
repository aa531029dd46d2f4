"""``fedml-dapper bench``: run one of the papers' tables or figures, and write its report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from fedml_dapper.benches.choices import Device, ProfileName
from fedml_dapper.commands.options import read_seeds
from fedml_dapper.config import Precision, parse_override
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.process.extras import need
from fedml_dapper.process.interruption import SAME_COMMAND, ending_in_order

if TYPE_CHECKING:
    from fedml_dapper.benches.overview import Standing
    from fedml_dapper.benches.queue import Outcome, Progress
    from fedml_dapper.benches.room import Room

_LINE_EVERY_S = 30.0


@click.command()
@click.argument("name", required=False)
@click.option("--profile", type=click.Choice(get_args(ProfileName)), default="small", show_default=True)
@click.option("--output", type=NamedPath(), help="Store of all benches; default: benches/PROFILE.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Stop then; go on another time.")
@click.option("--jobs", type=click.IntRange(min=1), help="Cells at a time; default: one per core, on a GPU what fits.")
@click.option("--device", type=click.Choice(get_args(Device)), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--seeds", help="Comma-separated; the profile's by default.")
@click.option("--also", "entrants", multiple=True, metavar="METHOD", help="Add a row for a method, e.g. mine.py:Mine.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting in every cell.")
@click.option("--report", "report_only", is_flag=True, help="Run nothing; report the cells that are there.")
@click.option("--list", "listing", is_flag=True, help="Say which benches there are, and how far.")
@ending_in_order("fedml-dapper", SAME_COMMAND)
def bench(
    name: str | None,
    profile: ProfileName,
    output: Path | None,
    max_minutes: float | None,
    jobs: int | None,
    device: Device,
    precision: Precision,
    seeds: str | None,
    entrants: Sequence[str],
    overrides: Sequence[str],
    report_only: bool,
    listing: bool,
) -> None:
    """Run every cell of bench NAME (a shipped one, or a YAML file) that is not finished, and write its report.

    A bench is a grid of methods and seeds on one experiment. Its cells run side by side, each on one thread. Killed or
    stopped at any moment, the same command goes on where it was; cells that two benches share are run once.
    """
    began = time.monotonic()
    from fedml_dapper.benches.bench_report import write_bench_report
    from fedml_dapper.benches.bench_terminal import terminal_table
    from fedml_dapper.benches.grid import Manifest, cells, check_weights, load_bench, with_entrants
    from fedml_dapper.benches.overview import standings
    from fedml_dapper.benches.queue import Outcome, run_queue
    from fedml_dapper.benches.results import CELLS_NAME, MANIFEST_NAME, has_other_cells, load_results
    from fedml_dapper.benches.room import check_gpu
    from fedml_dapper.federation import slow_precision
    from fedml_dapper.files.atomic import written_whole

    console = Console(stderr=True)
    store = output or Path("benches") / profile
    if listing or name is None:
        for one in standings(profile, store):
            click.echo(_line_of(one))
        return
    if not report_only:
        need("fedml-dapper bench", "sklearn", install="scikit-learn")  # at a cell's end, of which each may take an hour
    declared = with_entrants(load_bench(name), entrants)
    changes: dict[str, object] = {}
    for override in overrides:
        parse_override(changes, override)
    asked = None if seeds is None else read_seeds(seeds)
    chosen = cells(declared, profile, seeds=asked, device=device, precision=precision, overrides=changes)
    folder = store / declared.name
    manifest = Manifest.of(declared, profile, chosen, changes, precision)
    as_declared = asked is None and not entrants and not changes and (device, precision) == ("cpu", "fp32")
    shown: Manifest | None = manifest
    if report_only and as_declared and has_other_cells(folder, manifest):
        shown = None
        console.print(
            "note: cells that were run with other settings, precision or rows are shown; --seeds shows today's alone",
            soft_wrap=True,
        )
    else:
        check_weights(declared, chosen)
        if device == "cuda" and not report_only:
            check_gpu()
        with written_whole(folder / MANIFEST_NAME) as scratch:
            scratch.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    outcome = Outcome()
    if not report_only:
        at_a_time = jobs or _at_a_time(device)
        how_many = at_a_time if isinstance(at_a_time, int) else "as many as fit"
        console.print(f"{declared.title}: {len(chosen)} cells, {how_many} at a time, below {store}", soft_wrap=True)
        if slow := slow_precision(device == "cuda", precision):
            console.print(f"note: {slow}", soft_wrap=True)
        seconds = None if max_minutes is None else max(0.0, max_minutes * 60 - (time.monotonic() - began))
        with _Display(console) as display:
            outcome = run_queue(chosen, store / CELLS_NAME, jobs=at_a_time, max_seconds=seconds, tell=display.update)
    Console().print(terminal_table(load_results(folder, shown)))
    click.echo(f"Report: {write_bench_report(folder, shown).absolute()}")
    if outcome.stopped:
        click.echo(f"Stopped after {max_minutes:g} minutes; the same command goes on from here.")
    _tell_of_others(outcome)


def _line_of(one: Standing) -> str:
    if one.obstacle is not None:
        return f"{one.name:24} {one.state}: {one.obstacle}"
    return f"{one.name:24} {one.state:8} {one.finished:3} of {one.planned:3}  {one.title}"


def _tell_of_others(outcome: Outcome) -> None:
    """Say which cells have no result by this command, and exit with 1 where one failed."""
    for cell in outcome.elsewhere:
        click.echo(f"{cell} is being run by another command; its result will be there once that is done.")
    for cell, log in outcome.failed.items():
        click.echo(f"fedml-dapper: {cell} failed; {log} says why", err=True)
    if outcome.failed:
        sys.exit(1)


def _at_a_time(device: Device) -> int | Room:
    from fedml_dapper.benches.room import Room, free_on_gpu, is_gpu_shared
    from fedml_dapper.federation.workers.parallelism import available_cores

    cores = available_cores()
    return Room(free_on_gpu, cores, shared=is_gpu_shared()) if device == "cuda" else cores


class _Display:
    """Shows a live line on a terminal, else prints a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            BarColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting")
        self._printed = time.monotonic()

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, progress: Progress) -> None:
        eta = "" if progress.to_go is None else f"  ETA {progress.to_go}"
        cells = f"cells {progress.cells_done}/{progress.cells}, {len(progress.running)} running"
        text = f"{cells}  rounds {progress.rounds_done}/{progress.rounds}{eta}"
        self._bar.update(
            self._task,
            total=progress.rounds,
            completed=progress.rounds_done,
            description=f"{text}  {'; '.join(progress.running)}",
        )
        if not self._console.is_terminal and time.monotonic() - self._printed >= _LINE_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(text, highlight=False, soft_wrap=True)
