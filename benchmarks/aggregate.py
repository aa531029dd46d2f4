"""Recovery and averaging of slim uploads, against FedML's averaging of as many dense models."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import click
import torch
from torch import Tensor

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from benchmarks.uploads import Fleet, fleet
from fedml_dapper.models import BACKBONES
from fedml_dapper.process.rss import peak_extra_bytes
from fedml_dapper.pruning import DENSE, RecoveringMean


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--clients", default=10, show_default=True)
@click.option("--runs", default=15, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(model: str, clients: int, runs: int, threads: int, as_json: bool) -> None:
    """Seconds to aggregate one round of CLIENTS clients, two of each level, and the memory it takes."""
    from fedml.ml.aggregator.agg_operator import FedMLAggOperator  # noqa: PLC0415  # slow, and prints

    torch.set_num_threads(threads)
    group = fleet(model, clients)
    fedml_args = SimpleNamespace(federated_optimizer="FedAvg", ml_engine="torch")

    def dense() -> dict[str, Tensor]:
        models = [(upload.num_samples, dict(full)) for upload, full in zip(group.uploads, group.full, strict=True)]
        averaged: dict[str, Tensor] = FedMLAggOperator.agg(fedml_args, models)
        return averaged

    work = {
        "FedML, dense": dense,
        "ours, slim, all wait": lambda: aggregate(group, wait=True),
        "ours, slim, one by one": lambda: aggregate(group),
        "ours, dense, all wait": lambda: aggregate_dense(group),
    }
    seconds = time_in_turns(work, runs)
    size = sum(tensor.nbytes for tensor in group.weights.values())
    slim_size = sum(tensor.nbytes for upload in group.uploads for tensor in upload.weights.values())
    rows: list[dict[str, Figure]] = [
        {
            "aggregation": name,
            "seconds": median(times),
            "of FedML's": median_ratio(times, seconds["FedML, dense"]),
            "MB in": sent / 1e6,
            "GB/s": sent / 1e9 / median(times),
        }
        for (name, times), sent in zip(
            seconds.items(), (clients * size, slim_size, slim_size, clients * size), strict=True
        )
    ]
    figures = {
        "peak memory beyond what waits, all wait, in model sizes": peak_extra_bytes(lambda: aggregate(group, wait=True))
        / size,
        "the same, one by one": peak_extra_bytes(lambda: aggregate(group)) / size,
        "the same, ten times as many clients": peak_extra_bytes(lambda: aggregate(group, times=10)) / size,
    }
    Findings(f"Aggregating {clients} uploads of {model}", runs, rows, figures).show(as_json)


def aggregate(group: Fleet, times: int = 1, wait: bool = False) -> dict[str, Tensor]:
    """The new global model from the slim uploads, each folded in ``times`` times; each when it comes, or when all have
    come."""
    mean = RecoveringMean(group.weights, group.layout)
    if wait:
        mean.hold()
    for _ in range(times):
        for upload in group.uploads:
            mean.add(upload.weights, upload.plan, upload.num_samples)
    return mean.result()


def aggregate_dense(group: Fleet) -> dict[str, Tensor]:
    """The same from full models that wait for one another."""
    mean = RecoveringMean(group.weights, group.layout)
    mean.hold()
    for upload, full in zip(group.uploads, group.full, strict=True):
        mean.add(full, DENSE, upload.num_samples)
    return mean.result()


if __name__ == "__main__":
    main()
