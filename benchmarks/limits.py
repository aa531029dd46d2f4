"""What this machine can do at most, and how near to it training comes: one large matrix product, one convolution
forward and with its gradients, one large copy; then a step of each capability level as a share of that convolution's
rate, which is above the product's.

A step's rate is the multiply-accumulates of its forward pass, counted three times for the backward pass, by second.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import click
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.networks import Networks, network_options
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import time_in_turns
from benchmarks.step import DTYPES
from benchmarks.uploads import RATIOS
from fedml_dapper.config import Norm, Precision

_SIDE, _CHANNELS, _BATCH, _IMAGE = 2048, 128, 64, 16
_COPIED_MB = 256
_CONVOLUTION = "convolution, with gradients"


@click.command()
@network_options
@click.option("--precision", "precisions", multiple=True, type=click.Choice(["fp32", "bf16"]), default=["fp32", "bf16"])
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(
    model: str, width: int | None, norm: Norm, input_size: int, batch: int, precisions: tuple[Precision, ...],
    runs: int, threads: int, as_json: bool,
) -> None:  # fmt: skip
    """GMAC/s and GB/s of this machine, and the share of them that a training step of each level reaches."""
    torch.set_num_threads(threads)
    networks = Networks(model, width, norm, input_size, batch)
    work: dict[str, Callable[[], object]] = {}
    gmacs: dict[str, float] = {}
    for precision in precisions:
        work[f"{precision} matrix product"] = _product(precision)
        gmacs[f"{precision} matrix product"] = _SIDE**3 / 1e9
        forward = _BATCH * _IMAGE**2 * _CHANNELS**2 * 9 / 1e9
        for name, passes in (("convolution, forward", 1), (_CONVOLUTION, 3)):
            work[f"{precision} {name}"] = _convolution(precision, passes > 1)
            gmacs[f"{precision} {name}"] = passes * forward
        for ratio in RATIOS:
            work[f"{precision} step, ratio {ratio}"] = networks.step(networks.slim(ratio), precision)
            gmacs[f"{precision} step, ratio {ratio}"] = 3 * batch * networks.macs(ratio) / 1e9
    source, target = torch.ones(2, _COPIED_MB * 250_000)
    work["copy"] = lambda: target.copy_(source)
    seconds = {name: median(times) for name, times in time_in_turns(work, runs, warm_ups=2).items()}
    rates = {name: count / seconds[name] for name, count in gmacs.items()}
    rows: list[dict[str, Figure]] = [
        {
            "work": name,
            "GMAC/s": rate,
            "of the convolution": rate / rates[_limit(name)],
        }
        for name, rate in rates.items()
    ]
    copied = {"memory, GB/s read and written": 2 * _COPIED_MB / 1e3 / seconds["copy"]}
    Findings(f"Limits of this machine, and steps of {networks}", runs, rows, copied).show(as_json)


def _limit(name: str) -> str:
    """What the work of ``name`` is held against, in the same precision."""
    return f"{name.split(maxsplit=1)[0]} {_CONVOLUTION}"


def _product(precision: Precision) -> Callable[[], Tensor]:
    one, other = torch.randn(2, _SIDE, _SIDE).to(DTYPES[precision])
    return lambda: one @ other


def _convolution(precision: Precision, with_gradients: bool) -> Callable[[], object]:
    images = torch.randn(_BATCH, _CHANNELS, _IMAGE, _IMAGE).to(DTYPES[precision], memory_format=torch.channels_last)
    weight = torch.randn(_CHANNELS, _CHANNELS, 3, 3).to(DTYPES[precision], memory_format=torch.channels_last)
    if not with_gradients:
        return lambda: F.conv2d(images, weight, padding=1)
    leaves, upstream = (images.requires_grad_(), weight.requires_grad_()), torch.ones_like(images)
    return lambda: torch.autograd.grad(F.conv2d(images, weight, padding=1), leaves, upstream)


if __name__ == "__main__":
    main()
