"""What ``torch.compile`` gains in a training step of each level, and after how many steps compiling has paid.

Every level is a network of its own, so each is compiled, in every process that trains it.
"""

from __future__ import annotations

import time
from copy import deepcopy
from statistics import median

import click
import torch

from benchmarks.networks import Networks, network_options
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from benchmarks.uploads import RATIOS
from fedml_dapper.config import Norm, Precision


@click.command()
@network_options
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--ratio", "ratios", multiple=True, type=float, default=RATIOS, show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--threads", default=1, show_default=True)
@json_option
def main(
    model: str, width: int | None, norm: Norm, input_size: int, batch: int, precision: Precision,
    ratios: tuple[float, ...], runs: int, threads: int, as_json: bool,
) -> None:  # fmt: skip
    """Seconds of a step with and without, and of compiling."""
    torch.set_num_threads(threads)
    networks = Networks(model, width, norm, input_size, batch)
    rows: list[dict[str, Figure]] = []
    for ratio in ratios:
        slim = networks.slim(ratio)
        other = deepcopy(slim)
        other.compile()
        plain, compiled = networks.step(slim, precision), networks.step(other, precision)
        began = time.perf_counter()
        compiled()
        first = time.perf_counter() - began
        seconds = time_in_turns({"plain": plain, "compiled": compiled}, runs)
        gained = median(seconds["plain"]) - median(seconds["compiled"])
        rows.append(
            {
                "ratio": ratio,
                "seconds": median(seconds["plain"]),
                "compiled, of that": median_ratio(seconds["compiled"], seconds["plain"]),
                "seconds of compiling": first - median(seconds["compiled"]),
                "steps until it has paid": round(first / gained) if gained > 0 else "never",
            }
        )
    Findings(f"A compiled step of {networks}, {precision}", runs, rows).show(as_json)


if __name__ == "__main__":
    main()
