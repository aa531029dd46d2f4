"""``fedml-dapper footprint``: show what devices of each capability level have to carry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from pydantic import TypeAdapter
from rich.console import Console

from fedml_dapper.commands.options import json_option, shipped_where_missing
from fedml_dapper.config import LevelArgs, ModelArgs, PruningArgs, Settings, TrainArgs, check, load_settings, short_name
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError

if TYPE_CHECKING:
    from fedml_dapper.methods import Method


@click.command()
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    callback=shipped_where_missing,
    help="Network, input, method and levels of this experiment file; several are merged.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="With --config: change one setting.")
@click.option("--model", help="As model_args.model has it, e.g. resnet18 or my_net.py:Net; for images.")
@click.option("--input", "input_size", type=click.IntRange(min=8), default=32, show_default=True, help="Image side.")
@click.option("--width", type=click.IntRange(min=1), help="Channels of the first layer; as published when absent.")
@click.option("--norm", help="As model_args.norm has it.")
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--method", default="dapperfl", show_default=True, help="As dapper_args.method has it.")
@click.option("--batch", type=click.IntRange(min=2), default=64, show_default=True, help="Batch size.")
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Local epochs of a round.")
@click.option(
    "--scope",
    type=click.Choice(["auto", "internal", "grouped"]),
    help="As dapper_args.pruning.scope has it; when absent internal for built-in networks, auto for others.",
)
@click.option(
    "--ratio-of", type=click.Choice(["parameters", "flops", "channels"]), default="parameters", show_default=True
)
@click.option("--round-to", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--ratios", default="0,0.2,0.4,0.6,0.8", show_default=True, help="Pruning ratio of each level.")
@json_option
@click.pass_context
def footprint(
    context: click.Context,
    configs: Sequence[Path],
    overrides: Sequence[str],
    model: str | None,
    input_size: int,
    width: int | None,
    norm: str | None,
    classes: int,
    method: str,
    batch: int,
    epochs: int,
    scope: str | None,
    ratio_of: str,
    round_to: int,
    ratios: str,
    as_json: bool,
) -> None:
    """Show what each capability level trains and sends: parameters, MACs, bytes, peak memory, a whole round's MACs.

    Peak memory is counted: the received message, weights, gradients, optimizer (SGD with momentum) and what autograd
    saves for a batch.
    """
    from fedml_dapper.evaluation.fleet_tables import LevelNeeds, level_needs, needs_table
    from fedml_dapper.models import BACKBONES

    if configs:
        _check_alone(context)
        built, title = _of_experiment(load_settings(configs, overrides))
    elif model is None or overrides:
        raise ConfigError(
            "give an experiment file by --config, with --set where it is to differ, or a network by --model"
        )
    else:
        levels = check(LevelArgs, {"ratios": ratios.split(",")}, where="--ratios")
        scope = scope or ("internal" if model in BACKBONES else "auto")  # the default of the settings
        built = _of_images(
            check(ModelArgs, {"model": model, "width": width, "norm": norm}, where="options"),
            classes,
            input_size,
            method,
            check(TrainArgs, {"batch_size": batch, "epochs": epochs}, where="options"),
            check(PruningArgs, {"scope": scope, "ratio_of": ratio_of, "round_to": round_to}, where="options"),
            levels,
        )
        title = _title(built, model, width, f"{input_size}x{input_size} images")
    rows = level_needs(built)
    if as_json:
        click.echo(TypeAdapter(list[LevelNeeds]).dump_json(rows))
    else:
        Console().print(needs_table(rows, title))


def _check_alone(context: click.Context) -> None:
    """Check that no option repeats what the experiment file says.

    Raises:
        ConfigError: One does.
    """
    beside = ("configs", "overrides", "as_json")
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name is not None
        and parameter.name not in beside
        and context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise ConfigError(f"{given[0]}: with --config the experiment file says it; change it there, or by --set")


def _of_experiment(settings: Settings) -> tuple[Method[Any], str]:
    """Return the method of an experiment on its network and data, and the table's title."""
    from fedml_dapper.federation import build_untrained, device_of, load_data
    from fedml_dapper.inputs import described

    with redirect_stdout(sys.stderr):
        data = load_data(settings, device_of(settings))
        built = build_untrained(settings, data.num_classes, data.example)
    shape = described(data.example, lambda part: "x".join(str(size) for size in part.shape[1:]))
    name = short_name(settings.model_args.model)
    return built, _title(built, name, settings.model_args.width, f"inputs {shape}")


def _of_images(
    network: ModelArgs,
    classes: int,
    side: int,
    method: str,
    training: TrainArgs,
    pruning: PruningArgs,
    levels: LevelArgs,
) -> Method[Any]:
    from fedml_dapper.methods import METHODS, Problem
    from fedml_dapper.models import build_backbone, example_image

    found = METHODS.find(method)
    example = example_image(side)
    backbone = build_backbone(network, classes, 0, example)
    problem = Problem(backbone, example, training, pruning, uniform_weights=False, seed=0, ratios=levels.ratios)
    return found(found.check_params({}), problem)


def _title(built: Method[Any], model: str, width: int | None, inputs: str) -> str:
    from fedml_dapper.models import BACKBONES

    pruning = built.problem.pruning
    training = built.problem.training
    chosen = width or (BACKBONES[model].width if model in BACKBONES else None)
    shape = ", ".join((model, *([f"width {chosen}"] if chosen else []), inputs))
    work = f"{built.name}, {training.epochs} epochs in batches of {training.batch_size}"
    return f"{shape}, scope {_scope_in_words(built)}, ratio of {pruning.ratio_of}; {work}"


def _scope_in_words(built: Method[Any]) -> str:
    """The scope that was asked for or, where the network's channels decided, the one chosen, and why."""
    scoped = built.problem.scoped
    if scoped is None:
        return built.problem.pruning.scope
    return f"{scoped.scope} ({scoped.why})" if scoped.why else scoped.scope
