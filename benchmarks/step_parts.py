"""Of what a training step consists: convolutions, normalisation, the optimizer, what is computed besides, and Python.

PyTorch's profiler gives each operation the seconds of the processor that it took itself, without those that it called.
What of a step's seconds no operation took is Python's: calling layers, building the graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import click
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.networks import Networks, network_options
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import say_progress
from benchmarks.uploads import RATIOS
from fedml_dapper.config import Norm, Precision

PARTS = {
    "convolution": ("conv",),
    "normalisation": ("norm", "var", "std", "mean", "rsqrt"),
    "linear layers": ("addmm", "aten::mm"),
    "copies": ("copy_", "clone", "contiguous", "zero_", "fill_", "empty", "_to_copy"),
}
"""By what the names of its operations hold; the first that fits counts. The rest is elementwise: ReLU, sums, pools."""
_OPTIMIZER, _ELEMENTWISE = "optimizer", "elementwise"
_STEPS = 5


@click.command()
@network_options
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--threads", default=1, show_default=True)
@json_option
def main(
    model: str, width: int | None, norm: Norm, input_size: int, batch: int, precision: Precision, runs: int,
    threads: int, as_json: bool,
) -> None:  # fmt: skip
    """Shares of a training step of each level."""
    torch.set_num_threads(threads)
    networks = Networks(model, width, norm, input_size, batch)
    rows: list[dict[str, Figure]] = []
    begun = time.perf_counter()
    for number, ratio in enumerate(RATIOS, start=1):
        step = networks.step(networks.slim(ratio), precision)
        step()
        found = [_shares(step) for _ in range(runs)]
        rows.append({"ratio": ratio, **{name: median(one[name] for one in found) for name in found[0]}})
        say_progress(number, len(RATIOS), begun)
    Findings(f"Parts of a step of {networks}, {precision}, as shares of its seconds", runs, rows).show(as_json)


def _shares(step: Callable[[], None]) -> dict[str, float]:
    """Of a few steps; the profiler itself makes them longer, which is counted as Python's."""
    began = time.perf_counter()
    for _ in range(_STEPS):
        step()
    passed = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(_STEPS):
            step()
    spent = dict.fromkeys((*PARTS, _OPTIMIZER, _ELEMENTWISE), 0.0)
    for event in seen.events() or ():
        if event.name.startswith("aten::"):
            spent[_part(event)] += event.self_cpu_time_total / 1e6
    shares = {part: seconds / passed for part, seconds in spent.items()}
    return {"seconds": passed / _STEPS, **shares, "Python and the rest": max(0.0, 1 - sum(shares.values()))}


def _part(event: FunctionEvent) -> str:
    above: FunctionEvent | None = event
    while above is not None:
        if above.name.startswith("Optimizer."):
            return _OPTIMIZER
        above = above.cpu_parent
    return next((part for part, words in PARTS.items() if any(word in event.name for word in words)), _ELEMENTWISE)


if __name__ == "__main__":
    main()
