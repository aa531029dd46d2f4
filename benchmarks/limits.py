"""What this machine can do at most, and how near to it training comes: one large matrix product, one convolution
forward and with its gradients, one large copy; then a step of each capability level as a share of the product's rate.

A step's rate is the multiply-accumulates of its forward pass, counted three times for the backward pass, by second.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import click
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import time_in_turns
from benchmarks.step import DTYPES, training_step
from benchmarks.uploads import RATIOS
from fedml_dapper.config import ModelArgs, Norm, Precision
from fedml_dapper.models import BACKBONES, build_backbone, example_image
from fedml_dapper.pruning import footprint, plan_by_importance, slim_model, solve_widths, trace_layout

_SIDE, _CHANNELS, _BATCH, _IMAGE = 2048, 128, 64, 16
_COPIED_MB = 256


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--norm", type=click.Choice(["batch", "standardised"]), default="batch", show_default=True)
@click.option("--input", "input_size", default=32, show_default=True, help="Image side.")
@click.option("--batch", default=64, show_default=True)
@click.option("--precision", "precisions", multiple=True, type=click.Choice(["fp32", "bf16"]), default=["fp32", "bf16"])
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(
    model: str, norm: Norm, input_size: int, batch: int, precisions: tuple[Precision, ...], runs: int, threads: int,
    as_json: bool,
) -> None:  # fmt: skip
    """GMAC/s and GB/s of this machine, and the share of them that a training step of each level reaches."""
    torch.set_num_threads(threads)
    work: dict[str, Callable[[], object]] = {}
    gmacs: dict[str, float] = {}
    for precision in precisions:
        work[f"{precision} matrix product"] = _product(precision)
        gmacs[f"{precision} matrix product"] = _SIDE**3 / 1e9
        forward = _BATCH * _IMAGE**2 * _CHANNELS**2 * 9 / 1e9
        for name, passes in (("convolution, forward", 1), ("convolution, with gradients", 3)):
            work[f"{precision} {name}"] = _convolution(precision, passes > 1)
            gmacs[f"{precision} {name}"] = passes * forward
        for ratio in RATIOS:
            step, macs = _step(model, norm, input_size, batch, precision, ratio)
            work[f"{precision} step, ratio {ratio}"] = step
            gmacs[f"{precision} step, ratio {ratio}"] = 3 * batch * macs / 1e9
    source, target = torch.ones(2, _COPIED_MB * 250_000)
    work["copy"] = lambda: target.copy_(source)
    seconds = {name: median(times) for name, times in time_in_turns(work, runs, warm_ups=2).items()}
    rows: list[dict[str, Figure]] = [
        {
            "work": name,
            "GMAC/s": count / seconds[name],
            "of the matrix product": count / seconds[name] * seconds[_best(name)] / gmacs[_best(name)],
        }
        for name, count in gmacs.items()
    ]
    copied = {"memory, GB/s read and written": 2 * _COPIED_MB / 1e3 / seconds["copy"]}
    shape = f"{model}, norm {norm}, batch {batch}, {input_size}x{input_size}"
    Findings(f"Limits of this machine, and steps of {shape}", runs, rows, copied).show(as_json)


def _best(name: str) -> str:
    return f"{name.split(maxsplit=1)[0]} matrix product"


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


def _step(
    model: str, norm: Norm, input_size: int, batch: int, precision: Precision, ratio: float
) -> tuple[Callable[[], None], int]:
    """A training step, and the multiply-accumulates of one image's forward pass."""
    dense = build_backbone(ModelArgs(model=model, norm=norm), 10, 1, example_image(input_size))
    layout = trace_layout(dense, example_image(input_size), "internal")
    widths = solve_widths(layout, ratio, "parameters")
    slim = slim_model(dense, layout, plan_by_importance(layout, dense.state_dict(), widths))
    images = torch.randn(batch, 3, input_size, input_size).to(memory_format=torch.channels_last)
    return training_step(slim, images, torch.arange(batch) % 10, precision), footprint(layout, widths).macs


if __name__ == "__main__":
    main()
