"""``fedml-dapper footprint``: what devices of each capability level have to carry."""

from __future__ import annotations

import click
from pydantic import TypeAdapter
from rich.console import Console

from fedml_dapper.commands.options import json_option
from fedml_dapper.config import LevelArgs, ModelArgs, PruningArgs, TrainArgs, check


@click.command()
@click.option("--model", required=True, help="As model_args.model has it, e.g. resnet18 or my_net.py:Net.")
@click.option("--input", "input_size", type=click.IntRange(min=8), default=32, show_default=True, help="Image side.")
@click.option("--width", type=click.IntRange(min=1), help="Channels of the first layer; as published when absent.")
@click.option("--norm", help="As model_args.norm has it.")
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--method", default="dapperfl", show_default=True, help="As dapper_args.method has it.")
@click.option("--batch", type=click.IntRange(min=2), default=64, show_default=True, help="Batch size.")
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Local epochs of a round.")
@click.option("--scope", type=click.Choice(["internal", "grouped"]), default="internal", show_default=True)
@click.option(
    "--ratio-of", type=click.Choice(["parameters", "flops", "channels"]), default="parameters", show_default=True
)
@click.option("--round-to", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--ratios", default="0,0.2,0.4,0.6,0.8", show_default=True, help="Pruning ratio of each level.")
@json_option
def footprint(
    model: str, input_size: int, width: int | None, norm: str | None, classes: int, method: str, batch: int,
    epochs: int, scope: str, ratio_of: str, round_to: int, ratios: str, as_json: bool,
) -> None:  # fmt: skip
    """What each capability level trains and sends: parameters, MACs, bytes each way, memory, a whole round's MACs.

    Peak memory is counted: the received message, weights, gradients, optimizer (SGD with momentum) and what autograd
    saves for a batch.
    """
    from fedml_dapper.evaluation.fleet_tables import LevelNeeds, level_needs, needs_table
    from fedml_dapper.methods import METHODS, Problem
    from fedml_dapper.models import BACKBONES, build_backbone, example_image

    found = METHODS.find(method)
    levels = check(LevelArgs, {"ratios": ratios.split(",")}, where="--ratios")
    pruning = check(PruningArgs, {"scope": scope, "ratio_of": ratio_of, "round_to": round_to}, where="options")
    training = check(TrainArgs, {"batch_size": batch, "epochs": epochs}, where="options")
    example = example_image(input_size)
    backbone = build_backbone(
        check(ModelArgs, {"model": model, "width": width, "norm": norm}, where="options"), classes, 0, example
    )
    problem = Problem(backbone, example, training, pruning, uniform_weights=False, seed=0, ratios=levels.ratios)
    built = found(found.check_params({}), problem)
    rows = level_needs(built, levels)
    if as_json:
        click.echo(TypeAdapter(list[LevelNeeds]).dump_json(rows))
    else:
        chosen = width or (BACKBONES[model].width if model in BACKBONES else None)
        shape = ", ".join((model, *([f"width {chosen}"] if chosen else []), f"{input_size}x{input_size} images"))
        title = f"{shape}, {scope} scope, ratio of {ratio_of}; {method}, {epochs} epochs in batches of {batch}"
        Console().print(needs_table(rows, title))
