"""``fedml-dapper predict``: predict the classes of pictures by an exported model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedml_dapper.commands.options import json_option, trust_code_option
from fedml_dapper.config.named_path import NamedPath

_PATH = NamedPath()


@click.command()
@click.argument("model", type=_PATH)
@click.argument("pictures", type=_PATH, nargs=-1, required=True)
@trust_code_option
@json_option
def predict(model: Path, pictures: Sequence[Path], trust_code: bool, as_json: bool) -> None:
    """Say which class each of PICTURES is of, by the exported MODEL: a folder, or one of its files."""
    from fedml_dapper.export import Prediction
    from fedml_dapper.export import predict as predict_pictures

    found = predict_pictures(model, pictures, trust_code=trust_code)
    if as_json:
        click.echo(TypeAdapter(list[Prediction]).dump_json(found))
        return
    table = Table()
    table.add_column("picture", overflow="fold")
    table.add_column("class")
    table.add_column("probability", justify="right")
    for each in found:
        table.add_row(escape(str(each.picture)), escape(each.label), f"{100 * each.probability:.1f} %")
    Console().print(table)
