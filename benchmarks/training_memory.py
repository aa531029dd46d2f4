"""Peak memory of a client's round, measured and counted: capability levels under one method or another."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import torch

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import say_progress
from fedml_dapper.config import load_settings
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.fleet import demands
from fedml_dapper.process.rss import peak_extra_bytes

DIGITS = Path(__file__).parents[1] / "config" / "digits_offline.yaml"
_WARM_UP = 4
"""Samples of a round that comes first: the first one loads code."""


@click.command()
@click.option("--methods", default="dapperfl_slim", show_default=True, help="Beside FedAvg's client.")
@click.option("--levels", default="1,5", show_default=True)
@click.option("--model", default="resnet10", show_default=True)
@click.option("--width", default=32, show_default=True)
@click.option("--norm", default="standardised", show_default=True)
@click.option("--scope", default="internal", show_default=True)
@click.option("--image", default=32, show_default=True, help="Side of the images.")
@click.option("--batch", default=64, show_default=True)
@click.option("--micro", type=int, help="micro_batch_size of all clients, FedAvg's too.  [default: whole batches]")
@click.option(
    "--config", type=click.Path(exists=True), help="An experiment file to lay over, with its network and levels."
)
@click.option("--runs", default=1, show_default=True)
@click.option("--of", "single", type=(str, int), hidden=True)
@json_option
def main(
    methods: str, levels: str, model: str, width: int, norm: str, scope: str, image: int, batch: int,
    micro: int | None, config: str | None, runs: int, single: tuple[str, int] | None, as_json: bool,
) -> None:  # fmt: skip
    """Memory of one client's round beyond what its process holds without it: one local epoch, a process each.

    That is the model that was sent, training and the upload. What everything is measured against is FedAvg's client.
    Measured is how far resident memory rises, counted what ``fedml-dapper footprint`` says.
    """
    settings = {"model": model, "width": width, "norm": norm, "scope": scope, "image": image, "batch": batch}
    if micro is not None:
        settings["micro"] = micro
    if single is not None:
        keys = {"image": "image_size", "batch": "batch_size", "micro": "micro_batch_size"}
        asked = [f"{keys.get(key, key)}={value}" for key, value in settings.items()]
        click.echo(json.dumps(_measure(*single, [] if config else asked, config)))
        return
    chosen = [int(level) for level in levels.split(",")]
    clients = [("fedavg", 1), *((method, level) for method in methods.split(",") for level in chosen)]
    found: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in clients}
    begun = time.perf_counter()
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    options += [] if config is None else ["--config", config]
    for run in range(runs):
        for method, level in clients:
            command = [sys.executable, "-m", "benchmarks.training_memory", "--of", method, str(level), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise click.ClickException(done.stderr[-2000:])
            found[method, level].append(json.loads(done.stdout.splitlines()[-1]))
        say_progress(run + 1, runs, begun)
    dense, dense_counted = _largest(found["fedavg", 1])
    rows: list[dict[str, Figure]] = []
    for (method, level), peaks in found.items():
        measured, counted = _largest(peaks)
        rows.append(
            {
                "method": method,
                "level": level,
                "measured MB": measured / 1e6,
                "counted MB": counted / 1e6,
                "counted of measured": counted / measured,
                "of dense": measured / dense,
                "of dense, counted": counted / dense_counted,
            }
        )
    pieces = "" if micro is None else f", {micro} at a time"
    network = f"{model}, width {width}, {norm}, {scope}, {image}x{image}, {batch} a batch{pieces}"
    title = f"Peak memory of a round: {network if config is None else Path(config).name}"
    Findings(title, runs, rows, are="the largest of runs").show(as_json)


def _largest(peaks: list[tuple[int, int]]) -> tuple[int, int]:
    return max(measured for measured, _ in peaks), peaks[0][1]


def _measure(method: str, level: int, settings: list[str], config: str | None) -> tuple[int, int]:
    """Bytes, measured and counted, of the client of that capability level."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        few = ["client_num_in_total=5", "client_num_per_round=5", "client_share=0.15", "epochs=1", "comm_round=1"]
        asked = [f"method={method}", f"output_dir={folder}"]
        files = [DIGITS] if config is None else [DIGITS, Path(config)]
        levels = load_settings(files, [*settings, *few, *asked]).dapper_args.levels
        everyone = [1 + place % len(levels.ratios) for place in range(5)]
        asked += [] if levels.budgets else [f"assignment={everyone}"]
        experiment = build_experiment(load_settings(files, [*settings, *few, *asked]))
        client_id = next(profile.client_id for profile in experiment.profiles if profile.level == level)
        counted = next(one.memory_bytes for one in demands(experiment.method) if one.level == level)
        batch = experiment.settings.train_args.batch_size
        server, data = Server(experiment), experiment.clients[client_id]
        data = data.take(torch.arange(min(2 * batch, data.num_samples)))
        server.round_clients()
        downlink = server.downlink(client_id)
        client = ClientSide(experiment)
        client.update(downlink, data.take(torch.arange(_WARM_UP)))
        return peak_extra_bytes(lambda: client.update(downlink, data)), counted


if __name__ == "__main__":
    main()
