"""One training step: each capability level's slim model against the dense one, per precision."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import get_args

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from benchmarks.uploads import RATIOS
from fedml_dapper.config import ModelArgs, Precision
from fedml_dapper.models import BACKBONES, build_backbone, example_image
from fedml_dapper.pruning import footprint, plan_by_importance, slim_model, solve_widths, trace_layout

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_CHANNELS = "fp32, channels first"
"""How PyTorch lays images out by itself; we put the channels last."""


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--width", type=int, help="Channels of the first layer; as published when absent.")
@click.option("--input", "input_size", default=32, show_default=True, help="Image side.")
@click.option("--batch", default=64, show_default=True)
@click.option("--round-to", default=1, show_default=True, help="Widths in multiples of this.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--precision", "precisions", multiple=True, type=click.Choice(get_args(Precision)), default=["fp32", "bf16"]
)
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(
    model: str, width: int | None, input_size: int, batch: int, round_to: int, device: str,
    precisions: tuple[Precision, ...], runs: int, threads: int, as_json: bool,
) -> None:  # fmt: skip
    """Seconds of one SGD step per pruning ratio (of parameters, internal scope)."""
    torch.set_num_threads(threads)
    where = torch.device(device)
    dense = build_backbone(ModelArgs(model=model, width=width), 10, 1, example_image(input_size))
    layout = trace_layout(dense, example_image(input_size), "internal")
    widths = {ratio: solve_widths(layout, ratio, "parameters", round_to) for ratio in RATIOS}
    images = torch.randn(batch, 3, input_size, input_size, device=where)
    labels = torch.arange(batch, device=where) % 10
    work: dict[str, Callable[[], None]] = {}
    for precision in precisions:
        for ratio in RATIOS:
            plan = plan_by_importance(layout, dense.state_dict(), widths[ratio])
            slim = slim_model(dense, layout, plan).to(where)
            last = images.to(memory_format=torch.channels_last)
            work[f"{precision} {ratio}"] = _waited_for(training_step(slim, last, labels, precision), where)
    whole = build_backbone(ModelArgs(model=model, width=width), 10, 1, example_image(input_size)).to(where)
    work[FIRST_CHANNELS] = _waited_for(training_step(whole, images, labels, "fp32"), where)
    seconds = time_in_turns(work, runs, warm_ups=2)
    macs = {ratio: footprint(layout, widths[ratio]).macs for ratio in RATIOS}
    rows: list[dict[str, Figure]] = []
    for precision in precisions:
        for ratio in RATIOS:
            times, share = seconds[f"{precision} {ratio}"], macs[ratio] / macs[0.0]
            of_dense = median_ratio(times, seconds[f"{precision} 0.0"])
            rows.append(
                {
                    "precision": precision,
                    "ratio": ratio,
                    "MACs of dense": share,
                    "seconds": median(times),
                    "time of dense": of_dense,
                    "time above MACs": of_dense - share,
                    "time of fp32": median_ratio(times, seconds[f"{precisions[0]} {ratio}"]),
                }
            )
    figures = {
        f"{FIRST_CHANNELS}, dense, of {precisions[0]} channels last": median_ratio(
            seconds[FIRST_CHANNELS], seconds[f"{precisions[0]} 0.0"]
        )
    }
    shape = f"{model}, width {width or BACKBONES[model].width}, batch {batch}, {input_size}x{input_size}"
    Findings(f"One SGD step of {shape}, on {device}", runs, rows, figures).show(as_json)


def training_step(model: nn.Module, images: Tensor, labels: Tensor, precision: Precision) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-5)
    on = images.device.type

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(on, DTYPES[precision], enabled=precision != "fp32"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
        optimizer.step()

    return step


def _waited_for(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as it is timed: a GPU has computed all of it."""

    def whole() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return whole


if __name__ == "__main__":
    main()
