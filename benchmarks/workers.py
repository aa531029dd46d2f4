"""Clients side by side against clients one after another: seconds of a round, and memory of all processes together."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, say_progress
from benchmarks.processes import family, proportional_mb
from fedml_dapper.federation import LEDGER_NAME, read_ledger

_POLL_S = 0.1


@click.command()
@click.argument("config", default="quickstart.yaml")
@click.option("--counts", default="1,2", show_default=True, help="Numbers of workers.")
@click.option("--rounds", default=3, show_default=True, help="Of each run; the first warms up, the median counts.")
@click.option("--runs", default=5, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change settings.")
@json_option
def main(config: str, counts: str, rounds: int, runs: int, overrides: Sequence[str], as_json: bool) -> None:
    """``fedml-dapper run`` of CONFIG with so many workers of one thread each."""
    numbers = [int(count) for count in counts.split(",")]
    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    peaks: dict[int, list[float]] = {number: [] for number in numbers}
    begun = time.perf_counter()
    for run in range(runs):
        for number in numbers:
            settings = [f"comm_round={rounds}", "threads=1", f"workers={number}", *overrides]
            round_s, peak = _measured(config, settings)
            seconds[number].append(round_s)
            peaks[number].append(peak)
        say_progress(run + 1, runs, begun)
    first = numbers[0]
    rows: list[dict[str, Figure]] = [
        {
            "workers": number,
            "s per round": median(seconds[number]),
            f"times as fast as {first}": 1 / median_ratio(seconds[number], seconds[first]),
            "peak MB": median(peaks[number]),
            f"peak of that of {first}": median_ratio(peaks[number], peaks[first]),
        }
        for number in numbers
    ]
    Findings(f"Rounds of {config} by workers of one thread", runs, rows).show(as_json)


def _measured(config: str, settings: list[str]) -> tuple[float, float]:
    """Seconds of a round, and the most MB that the run's processes took together; shared pages count once."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "fedml_dapper.entry", "run", "-c", config, *changes, "--output", folder]
        log = Path(folder) / "log.txt"
        with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, sum(map(proportional_mb, family(process.pid))))
                time.sleep(_POLL_S)
        if process.returncode != 0:
            raise click.ClickException(log.read_text()[-2000:])
        _, rounds = read_ledger(Path(folder) / LEDGER_NAME)
    return median(record.seconds.total for record in rounds[1:] or rounds), peak


if __name__ == "__main__":
    main()
