"""Messages to bytes and back: time, size, and what fewer bits cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import get_args

import click
import torch

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import time_in_turns
from benchmarks.uploads import RATIOS, fleet
from fedml_dapper import __version__
from fedml_dapper.config import Uplink
from fedml_dapper.federation import Agreement, Codec, SharedSettings
from fedml_dapper.methods import as_received
from fedml_dapper.models import BACKBONES

HERE = Agreement(SharedSettings(version=__version__, method="dapperfl", values={}, chosen=()), {})


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(model: str, runs: int, threads: int, as_json: bool) -> None:
    """Encode and decode one upload of each level, in each form that uploads may have."""
    torch.set_num_threads(threads)
    group = fleet(model, len(RATIOS))
    work: dict[str, Callable[[], object]] = {}
    sizes: dict[tuple[Uplink, float], tuple[int, int]] = {}
    for uplink in get_args(Uplink):
        layout = replace(group.layout, uplink=uplink)
        codec = Codec(layout, HERE)
        for ratio, upload in zip(RATIOS, group.uploads, strict=True):
            received = as_received(upload, layout)
            data = codec.encode(received)
            sizes[uplink, ratio] = (sum(tensor.nbytes for tensor in upload.weights.values()), len(data))
            work[f"round {uplink} {ratio}"] = partial(as_received, upload, layout)
            work[f"encode {uplink} {ratio}"] = partial(codec.encode, received)
            work[f"decode {uplink} {ratio}"] = partial(codec.decode, data)
    seconds = {name: median(times) for name, times in time_in_turns(work, runs).items()}
    rows: list[dict[str, Figure]] = [
        {
            "uplink": uplink,
            "ratio": ratio,
            "MB of weights": weights / 1e6,
            "MB sent": sent / 1e6,
            "rounding s": seconds[f"round {uplink} {ratio}"],
            "encode GB/s": weights / 1e9 / seconds[f"encode {uplink} {ratio}"],
            "decode GB/s": weights / 1e9 / seconds[f"decode {uplink} {ratio}"],
        }
        for (uplink, ratio), (weights, sent) in sizes.items()
    ]
    Findings(f"Uploads of {model} as bytes, GB/s of fp32 weights", runs, rows).show(as_json)


if __name__ == "__main__":
    main()
