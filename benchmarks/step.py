"""One training step: the dense model against each capability level's slim model, paired in one process.

Each run times one step of every model in turn, so that whatever else the machine does falls on all of them; printed
are medians and the median of the per-run ratios to dense.
"""

from __future__ import annotations

import json
import time
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from benchmarks.machine import describe
from fedml_dapper.config import ModelArgs
from fedml_dapper.models import BACKBONES, Backbone, build_backbone
from fedml_dapper.pruning import footprint, plan_by_importance, slim_model, solve_widths, trace_layout

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8)


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--input", "input_size", default=32, show_default=True)
@click.option("--batch", default=64, show_default=True)
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(model: str, input_size: int, batch: int, runs: int, threads: int, as_json: bool) -> None:
    """Seconds of one SGD step per pruning ratio (of parameters, internal scope)."""
    torch.set_num_threads(threads)
    dense = build_backbone(ModelArgs(model=model), 10, 1, input_size)
    layout = trace_layout(dense, input_size, "internal")
    widths = [solve_widths(layout, ratio, "parameters") for ratio in RATIOS]
    models = [slim_model(dense, layout, plan_by_importance(layout, dense.state_dict(), w)) for w in widths]
    images, labels = torch.randn(batch, 3, input_size, input_size), torch.arange(batch) % 10
    seconds = _time_in_turns(models, images, labels, runs)
    costs = [footprint(layout, w) for w in widths]
    rows = [
        {
            "ratio": ratio,
            "params_share": cost.parameters / costs[0].parameters,
            "macs_share": cost.macs / costs[0].macs,
            "seconds": median(times),
            "ratio_to_dense": median(slim / full for slim, full in zip(times, seconds[0], strict=True)),
        }
        for ratio, cost, times in zip(RATIOS, costs, seconds, strict=True)
    ]
    if as_json:
        name = f"step of {model}, batch {batch}, {input_size}x{input_size}"
        click.echo(json.dumps({"name": name, "machine": describe(), "runs": runs, "levels": rows}))
        return
    table = Table(
        title=f"One SGD step of {model}, batch {batch}, {input_size}x{input_size}; medians of {runs} paired runs"
    )
    for column in ("ratio", "parameters", "MACs", "seconds", "of dense"):
        table.add_column(column, justify="right")
    for row in rows:
        shares = (f"{row['params_share']:.1%}", f"{row['macs_share']:.1%}")
        table.add_row(f"{row['ratio']:g}", *shares, f"{row['seconds']:.3f}", f"{row['ratio_to_dense']:.2f}")
    Console().print(table, describe())


def _time_in_turns(models: list[Backbone], images: torch.Tensor, labels: torch.Tensor, runs: int) -> list[list[float]]:
    optimizers = [torch.optim.SGD(model.parameters(), 0.01, momentum=0.9) for model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for run in range(runs + 1):
        for model, optimizer, times in zip(models, optimizers, seconds, strict=True):
            started = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
            optimizer.step()
            if run > 0:  # the first is warm-up
                times.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
