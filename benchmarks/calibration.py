"""How long a client's round takes, as the plan of a fleet predicts it from a calibration, and as it is."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import click
import torch

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import say_progress
from fedml_dapper.config import load_settings
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.fleet import demands
from fedml_dapper.fleet.calibration import step_times
from fedml_dapper.fleet.families import family_of
from fedml_dapper.fleet.fitting import training_seconds
from fedml_dapper.fleet.profiles import Speed

QUICKSTART = Path(__file__).parents[1] / "config" / "quickstart.yaml"


@click.command()
@click.option("--method", default="dapperfl_slim", show_default=True)
@click.option("--samples", default=96, show_default=True, help="Of every client.")
@click.option("--threads", default=1, show_default=True)
@click.option("--runs", default=3, show_default=True)
@json_option
def main(method: str, samples: int, threads: int, runs: int, as_json: bool) -> None:
    """Seconds of a client's local round in the quickstart, level by level; the calibration is made anew in each run."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        asked = [f"method={method}", "assignment=[1, 2, 3, 4, 5]", f"output_dir={folder}", "client_share=0.15"]
        few = ["client_num_in_total=5", "client_num_per_round=5", "comm_round=1"]
        experiment = build_experiment(load_settings([QUICKSTART], [*asked, *few]))
    server, client = Server(experiment), ClientSide(experiment)
    server.round_clients()
    needs = {one.level: one for one in demands(experiment.method)}
    found: dict[int, list[tuple[float, float]]] = {level: [] for level in needs}
    begun = time.perf_counter()
    for run in range(runs):
        speed = Speed(
            network="the quickstart's", family=family_of(experiment.method.problem.backbone), mark="measured",
            source="", ms_per_sample=step_times(experiment.method),
        )  # fmt: skip
        for level, need in needs.items():
            data = experiment.clients[level - 1]
            data = data.take(torch.arange(min(samples, data.num_samples)))
            downlink = server.downlink(level - 1)
            predicted = training_seconds(need, speed, data.num_samples)
            started = time.perf_counter()
            client.update(downlink, data)
            found[level].append((predicted, time.perf_counter() - started))
        say_progress(run + 1, runs, begun)
    rows: list[dict[str, Figure]] = [
        {
            "level": level,
            "predicted s": median(predicted for predicted, _ in pairs),
            "measured s": median(measured for _, measured in pairs),
            "predicted of measured": median(predicted / measured for predicted, measured in pairs),
        }
        for level, pairs in found.items()
    ]
    Findings(f"A client's local round under {method}, quickstart, {threads} threads", runs, rows).show(as_json)


if __name__ == "__main__":
    main()
