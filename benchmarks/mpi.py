"""Rounds in one process and under MPI, in turns; and what the model of docs/runners.md predicts from the former."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from benchmarks.mpi_model import RoundModel
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, say_progress
from fedml_dapper.federation import LEDGER_NAME, RoundRecord, read_ledger

CONFIGS = Path(__file__).parents[1] / "config"


@click.command()
@click.option("--config", type=click.Path(exists=True, path_type=Path), default=CONFIGS / "digits_offline.yaml")
@click.option("--ranks", default="1,2,4", show_default=True, help="Numbers of training ranks; the server is one more.")
@click.option("--rounds", default=3, show_default=True, help="Per run; the first one does not count.")
@click.option("--runs", default=5, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@json_option
def main(config: Path, ranks: str, rounds: int, runs: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Seconds of a round of CONFIG, every process with one thread, and as predicted from one process."""
    cores, byte_s = len(os.sched_getaffinity(0)), _seconds_per_byte()
    under_mpi = {int(number): [_mpiexec(), "-n", str(int(number) + 1)] for number in ranks.split(",")}
    settings = [f"comm_round={rounds}", "threads=1", *overrides]
    alone: list[float] = []
    seconds: dict[int, list[float]] = {number: [] for number in under_mpi}
    predicted: dict[int, list[float]] = {number: [] for number in under_mpi}
    begun = time.perf_counter()
    for run in range(runs):
        done = _rounds([], config, [*settings, "backend=sp", "workers=1"])
        alone.append(median(record.seconds.total for record in done))
        models = [RoundModel.of(record, byte_s) for record in done]
        for number, launcher in under_mpi.items():
            done = _rounds(launcher, config, [*settings, "backend=MPI"])
            seconds[number].append(median(record.seconds.total for record in done))
            predicted[number].append(median(model.seconds(number, cores) for model in models))
        say_progress(run + 1, runs, begun)
    rows: list[dict[str, Figure]] = [
        {
            "training ranks": number,
            "s per round": median(seconds[number]),
            "of one process": median_ratio(seconds[number], alone),
            "predicted s": median(forecasts),
            "predicted of measured": median_ratio(forecasts, seconds[number]),
        }
        for number, forecasts in predicted.items()
    ]
    figures = {"one process, s per round": median(alone), "MPI, GB/s one way": 1e-9 / byte_s}
    Findings(f"Rounds of {config.name} under MPI, {cores} cores", runs, rows, figures).show(as_json)


def _rounds(launcher: list[str], config: Path, settings: list[str]) -> list[RoundRecord]:
    """Those of a run that count."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [part for setting in settings for part in ("--set", setting)]
        command = [*launcher, sys.executable, "-m", "fedml_dapper", "--cf", str(config), *changes, "--output", folder]
        _output(command)
        _, rounds = read_ledger(Path(folder) / LEDGER_NAME)
    return list(rounds[1:])


def _seconds_per_byte() -> float:
    return float(json.loads(_output([_mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.mpi_line"])))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr[-2000:])
    return done.stdout


def _mpiexec() -> str:
    return str(Path(sys.executable).with_name("mpiexec"))


if __name__ == "__main__":
    main()
