"""``fedml-dapper footprint``: what devices of each capability level have to carry."""

from __future__ import annotations

import click
from pydantic import TypeAdapter
from rich.console import Console

from fedml_dapper.commands.options import json_option
from fedml_dapper.config import LevelArgs, ModelArgs, PruningArgs, TrainArgs, check
from fedml_dapper.evaluation import footprint_table
from fedml_dapper.federation import LevelFootprint, level_footprints
from fedml_dapper.methods import DapperFL, Problem
from fedml_dapper.models import BACKBONES, build_backbone, example_image


@click.command()
@click.option("--model", required=True, type=click.Choice(sorted(BACKBONES)))
@click.option("--input", "input_size", type=click.IntRange(min=8), default=32, show_default=True, help="Image side.")
@click.option("--width", type=click.IntRange(min=1), help="Channels of the first layer; as published when absent.")
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--scope", type=click.Choice(["internal", "grouped"]), default="internal", show_default=True)
@click.option(
    "--ratio-of", type=click.Choice(["parameters", "flops", "channels"]), default="parameters", show_default=True
)
@click.option("--round-to", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--ratios", default="0,0.2,0.4,0.6,0.8", show_default=True, help="Pruning ratio of each level.")
@json_option
def footprint(
    model: str, input_size: int, width: int | None, classes: int, scope: str, ratio_of: str, round_to: int, ratios: str,
    as_json: bool,
) -> None:  # fmt: skip
    """What each capability level trains and sends under DapperFL: parameters, MACs, bytes each way."""
    levels = check(LevelArgs, {"ratios": ratios.split(",")}, where="--ratios")
    rows = _footprints(
        ModelArgs(model=model, width=width), input_size, classes, levels,
        check(PruningArgs, {"scope": scope, "ratio_of": ratio_of, "round_to": round_to}, where="options"),
    )  # fmt: skip
    if as_json:
        click.echo(TypeAdapter(list[LevelFootprint]).dump_json(list(rows)))
    else:
        shape = f"{model}, width {width or BACKBONES[model].width}, {input_size}x{input_size} images"
        title = f"{shape}, {scope} scope, ratio of {ratio_of}"
        Console().print(footprint_table(rows, title))


def _footprints(
    model: ModelArgs, input_size: int, classes: int, levels: LevelArgs, pruning: PruningArgs
) -> tuple[LevelFootprint, ...]:
    example = example_image(input_size)
    backbone = build_backbone(model, classes, 0, example)
    problem = Problem(backbone, example, TrainArgs(), pruning, uniform_weights=False, seed=0)
    return level_footprints(DapperFL(DapperFL.check_params({}), problem), levels)
