"""How time and memory grow with the number of simulated clients: one process a size, so that peaks are its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import click
import torch

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import say_progress
from fedml_dapper.config import load_settings
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.process.rss import peak_bytes

DIGITS = Path(__file__).parents[1] / "config" / "digits_offline.yaml"


@click.command()
@click.option("--sizes", default="10,100,1000", show_default=True, help="Numbers of clients.")
@click.option("--per-round", type=int, help="So many of them in every round; default: all.")
@click.option("--method", default="dapperfl", show_default=True)
@click.option("--model", default="resnet10", show_default=True)
@click.option("--width", default=8, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--of", "single", type=int, hidden=True)
@json_option
def main(
    sizes: str, per_round: int | None, method: str, model: str, width: int, rounds: int, runs: int, single: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Rounds of the embedded digits, each client with 1 % of a domain's images and two local epochs.

    Seconds are those of the last round without the server's evaluation, which is the same for any number of clients.
    """
    if single is not None:
        click.echo(json.dumps(_measure(single, per_round or single, method, model, width, rounds)))
        return
    numbers = [int(size) for size in sizes.split(",")]
    begun = time.perf_counter()
    found: dict[int, list[dict[str, float]]] = {number: [] for number in numbers}
    for run in range(runs):
        for number in numbers:
            command = [sys.executable, "-m", "benchmarks.clients", "--of", str(number), "--method", method]
            command += ["--model", model, "--width", str(width), "--rounds", str(rounds)]
            command += [] if per_round is None else ["--per-round", str(per_round)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise click.ClickException(done.stderr[-2000:])
            found[number].append(json.loads(done.stdout.splitlines()[-1]))
        say_progress(run + 1, runs, begun)
    first = numbers[0]
    rows: list[dict[str, Figure]] = []
    for number in numbers:
        row: dict[str, Figure] = {"clients": number}
        for key in ("s per client", "s a round", "s to begin", "peak MB"):
            row[key] = median(run[key] for run in found[number])
            pairs = zip(found[number], found[first], strict=True)
            row[f"{key}, of {first}"] = median(one[key] / other[key] for one, other in pairs)
        rows.append(row)
    Findings(f"{method}, {model} of width {width}, {rounds} rounds", runs, rows).show(as_json)


def _measure(clients: int, per_round: int, method: str, model: str, width: int, rounds: int) -> dict[str, float]:
    torch.set_num_threads(1)
    begun = time.perf_counter()
    overrides = {
        "method": method, "model": model, "width": width, "comm_round": rounds, "epochs": 2, "client_share": 0.01,
        "client_num_in_total": clients, "client_num_per_round": per_round, "frequency_of_the_test": rounds,
    }  # fmt: skip
    experiment = build_experiment(load_settings([DIGITS], [f"{key}={value}" for key, value in overrides.items()]))
    _, records = simulate(experiment)
    whole, last = time.perf_counter() - begun, records[-1].seconds
    round_s = last.total - last.evaluation
    return {
        "s per client": round_s / per_round,
        "s a round": round_s,
        "s to begin": whole - sum(record.seconds.total for record in records),
        "peak MB": peak_bytes() / 1e6,
    }


if __name__ == "__main__":
    main()
