"""Rounds in one process and under MPI with one and two training ranks, in turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, say_progress
from fedml_dapper.federation import LEDGER_NAME, read_ledger

CONFIGS = Path(__file__).parents[1] / "config"


@click.command()
@click.option("--config", type=click.Path(exists=True, path_type=Path), default=CONFIGS / "digits_offline.yaml")
@click.option("--ranks", default="1,2", show_default=True, help="Numbers of training ranks; the server is one more.")
@click.option("--rounds", default=3, show_default=True, help="Per run; the first one does not count.")
@click.option("--runs", default=5, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@json_option
def main(
    config: Path, ranks: str, rounds: int, runs: int, overrides: tuple[str, ...], as_json: bool
) -> None:  # fmt: skip
    """Seconds of a round of CONFIG, every process with one thread."""
    alone = "one process"
    launchers = {alone: [sys.executable]} | {
        f"MPI, {number} + server": [_mpiexec(), "-n", str(int(number) + 1), sys.executable]
        for number in ranks.split(",")
    }
    seconds: dict[str, list[float]] = {name: [] for name in launchers}
    begun = time.perf_counter()
    for run in range(runs):
        for name, launcher in launchers.items():
            backend = "sp" if name == alone else "MPI"
            settings = [f"comm_round={rounds}", "threads=1", f"backend={backend}", *overrides]
            seconds[name].append(_round_seconds(launcher, config, settings))
        say_progress(run + 1, runs, begun)
    rows: list[dict[str, Figure]] = [
        {"runner": name, "s per round": median(times), "of one process": median_ratio(times, seconds[alone])}
        for name, times in seconds.items()
    ]
    Findings(f"Rounds of {config.name}", runs, rows).show(as_json)


def _round_seconds(launcher: list[str], config: Path, settings: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        changes = [part for setting in settings for part in ("--set", setting)]
        command = [*launcher, "-m", "fedml_dapper", "--cf", str(config), *changes, "--output", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise click.ClickException(done.stderr[-2000:])
        _, rounds = read_ledger(Path(folder) / LEDGER_NAME)
    return median(record.seconds.total for record in rounds[1:])


def _mpiexec() -> str:
    return str(Path(sys.executable).with_name("mpiexec"))


if __name__ == "__main__":
    main()
