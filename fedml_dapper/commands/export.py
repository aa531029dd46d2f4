"""``fedml-dapper export``: write the model that a device runs to a file for its runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedml_dapper.commands.options import trust_code_option
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.deployment.format_names import FORMAT_NAMES

if TYPE_CHECKING:
    from fedml_dapper.export import Card

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_PATH = NamedPath()


def export_options(command: CommandT) -> CommandT:
    """Add the options of all commands that export."""
    options = (
        click.option("--level", type=click.IntRange(min=1), help="Capability level; without it the whole model."),
        click.option(
            "--format",
            "formats",
            type=click.Choice(FORMAT_NAMES),
            multiple=True,
            default=["onnx"],
            show_default=True,
            help="File format; may be given several times.",
        ),
        click.option("--int8", is_flag=True, help="Besides, the ONNX file quantised to 8 bits after training."),
        trust_code_option,
        click.option("-o", "--output", type=_PATH, required=True, help="A new folder."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("run", type=_PATH)
@click.option("--client", type=click.IntRange(min=0), help="That client's own model, or its level and statistics.")
@click.option("--peft", is_flag=True, help="Besides, the adapters alone, in peft's format.")
@click.option("--calibrate", type=_PATH, help="Measure BatchNorm's statistics on the pictures in this folder.")
@export_options
def export(
    run: Path,
    level: int | None,
    client: int | None,
    peft: bool,
    calibrate: Path | None,
    formats: Sequence[str],
    int8: bool,
    trust_code: bool,
    output: Path,
) -> None:
    """Write the model of the finished RUN that a device runs, check it, and say what it costs and what it can do."""
    from fedml_dapper.export import Exporter, calibrated, choose, has_statistics, pictures_for
    from fedml_dapper.federation.run_folder.finished import open_finished

    finished = open_finished(run, trust_code=trust_code)
    exporter = Exporter(finished, tuple(dict.fromkeys(formats)), int8, peft)
    subject = choose(finished, level, client)
    if calibrate is None:
        show(exporter.export(subject, output), output)
        return
    if not int8 or has_statistics(subject):  # without BatchNorm int8's ranges alone are measured
        subject = calibrated(subject, finished, calibrate)
    show(exporter.export(subject, output, pictures=pictures_for(finished, calibrate)), output)


def show(card: Card, folder: Path) -> None:
    """Print what was written, and what was measured of it."""
    from fedml_dapper.evaluation.units import quantity
    from fedml_dapper.export import CARD_NAME

    console = Console()
    description = "; then ".join((card.about.whose, *card.about.changes))
    console.print(escape(f"{card.about.network}: {description}"), soft_wrap=True)
    table = Table(title="Measured through the files, one sample at a time")
    table.add_column("file", no_wrap=True)
    for heading in ("size", "difference", "ms", "ms, dense"):
        table.add_column(heading, justify="right")
    for each in card.files:
        dense = "" if each.dense_milliseconds is None else f"{each.dense_milliseconds:.2f}"
        difference = "quantised" if each.difference is None else f"{each.difference:.1g}"
        table.add_row(each.file, quantity(each.bytes, "B"), difference, f"{each.milliseconds:.2f}", dense)
    console.print(table)
    if card.tested:
        accuracy = Table(title=f"{card.metric.title} on each test set")
        accuracy.add_column("file", no_wrap=True)
        for name in card.tested:
            accuracy.add_column(escape(name), justify="right")
        for row, values in card.accuracies.items():
            accuracy.add_row(row, *(card.metric.number(values[name]) for name in card.tested))
        console.print(accuracy)
    else:
        console.print(f"accuracy was not measured: {card.without_data or 'there are no test samples'}", soft_wrap=True)
    console.print(f"Card: {folder / CARD_NAME}", soft_wrap=True)
