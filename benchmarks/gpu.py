"""A training step on a GPU: what the GPU computes, what it waits for, and what clients side by side would gain.

What the GPU itself takes is the time of a CUDA graph of the step, replayed without Python. Side by side are two
clients' steps on a stream each, launched in turns by one thread, and clients in processes that share the GPU.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from statistics import median
from threading import Barrier
from typing import get_args

import click
import torch

from benchmarks.networks import Networks, network_options
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from benchmarks.uploads import RATIOS
from fedml_dapper.capture import CudaGraphs
from fedml_dapper.config import Norm, Precision

STEPS = 20
"""Timed in a row, as in a client's epochs: the GPU is waited for at their end alone."""
PROCESSES = (1, 4, 8)
_SECONDS = 3.0


@click.command()
@network_options
@click.option("--precision", "precisions", multiple=True, type=click.Choice(get_args(Precision)), default=["bf16"])
@click.option("--runs", default=7, show_default=True)
@json_option
def main(
    model: str, width: int | None, norm: Norm, input_size: int, batch: int, precisions: tuple[Precision, ...],
    runs: int, as_json: bool,
) -> None:  # fmt: skip
    """Milliseconds of one SGD step per pruning ratio and precision. Skips where torch finds no GPU."""
    if not torch.cuda.is_available():
        click.echo("skipped: torch finds no GPU on this machine", err=True)
        return
    networks = Networks(model, width, norm, input_size, batch, "cuda")
    rows = [_row(networks, ratio, precision, runs) for precision in precisions for ratio in RATIOS]
    alone = _in_processes(networks, 1)
    figures: dict[str, Figure] = {"steps a second of one process": alone}
    figures |= {f"times that in {count} processes": _in_processes(networks, count) / alone for count in PROCESSES[1:]}
    name = torch.cuda.get_device_name()
    Findings(f"One SGD step of {networks}, on an {name}", runs, rows, figures).show(as_json)


def _row(networks: Networks, ratio: float, precision: Precision, runs: int) -> dict[str, Figure]:
    steps = [networks.step(networks.slim(ratio), precision) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in steps]  # type: ignore[no-untyped-call]  # torch ships it untyped
    recording = CudaGraphs(torch.device("cuda", torch.cuda.current_device())).record(steps[0])

    def one_after_another() -> None:
        for step in steps:
            for _ in range(STEPS):
                step()
        torch.cuda.synchronize()

    def on_two_streams() -> None:
        for _ in range(STEPS):
            for stream, step in zip(streams, steps, strict=True):
                with torch.cuda.stream(stream):
                    step()
        torch.cuda.synchronize()

    def replayed() -> None:
        for _ in range(2 * STEPS):
            recording.replay()
        torch.cuda.synchronize()

    work = {"eager": one_after_another, "streams": on_two_streams, "graph": replayed}
    seconds = time_in_turns(work, runs)
    return {
        "precision": precision,
        "ratio": ratio,
        "GMACs": 3 * networks.batch * networks.macs(ratio) / 1e9,
        "ms": 1e3 * median(seconds["eager"]) / (2 * STEPS),
        "ms of the GPU": 1e3 * median(seconds["graph"]) / (2 * STEPS),
        "GPU busy": median_ratio(seconds["graph"], seconds["eager"]),
        "on two streams, of one after another": median_ratio(seconds["streams"], seconds["eager"]),
    }


def _in_processes(networks: Networks, count: int) -> float:
    """Dense bf16 steps a second of so many processes together."""
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(count, context) as pool:
        return sum(pool.map(_steps_a_second, repeat(networks, count), repeat(manager.Barrier(count), count)))


def _steps_a_second(networks: Networks, together: Barrier) -> float:
    torch.set_num_threads(1)
    step = networks.step(networks.slim(0.0), "bf16")
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    together.wait()
    began, done = time.perf_counter(), 0
    while time.perf_counter() < began + _SECONDS:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        done += STEPS
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
