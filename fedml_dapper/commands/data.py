"""``fedml-dapper data``: find data on this machine, and pack it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedml_dapper.commands.options import json_option, shipped_where_missing
from fedml_dapper.config import DataArgs, load_settings
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError, DataError, on_one_line


@click.group()
def data() -> None:
    """Look for data, and pack it."""


@data.command("check")
@click.option("--root", type=NamedPath(), help="Root of the data; default: DAPPER_DATA, else data/.")
@click.option("--dataset", help="One suite only; `folder` for pictures of your own in ROOT.")
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    callback=shipped_where_missing,
    help="The data of this experiment file instead; several are merged.",
)
@json_option
def check_data(root: Path | None, dataset: str | None, configs: Sequence[Path], as_json: bool) -> None:
    """Say which domains were found, where, and how many images they have; exit code 2 if chosen data lack one."""
    from fedml_dapper.datasets.availability import find_domains
    from fedml_dapper.datasets.suites import PUBLISHED, data_root
    from fedml_dapper.datasets.text_offline import TEXT_OFFLINE

    if configs:
        if root is not None or dataset is not None:
            raise ConfigError("--config says which data and where; leave --root and --dataset out")
        chosen = [load_settings(configs).data_args]
    else:
        built_in = (*PUBLISHED, TEXT_OFFLINE)
        chosen = [DataArgs(dataset=name, data_cache_dir=root) for name in ([dataset] if dataset else built_in)]
    is_own = chosen[0].dataset not in (*PUBLISHED, TEXT_OFFLINE)
    where = data_root(chosen[0].data_cache_dir).absolute()
    rows = [row for args in chosen for row in find_domains(args)]
    if as_json:
        click.echo(TypeAdapter(list[dict[str, object]]).dump_json([asdict(row) for row in rows]))
    else:
        table = Table(title=escape(f"Data below {where}"))
        first = "data set" if is_own else "suite"
        for column in (first, "domain", "train", "test", "found in"):
            table.add_column(column, justify="right" if column in ("train", "test") else "left")
        for row in rows:
            found = row.problem or row.source or f"missing: looked for {', '.join(row.looked_in)}"
            if row.is_subset:
                found += " (subset)"
            table.add_row(*map(escape, (row.suite, row.domain, str(row.num_train), str(row.num_test), found)))
        Console().print(table)
        if rows[0].classes:
            click.echo(on_one_line(f"{len(rows[0].classes)} classes: {', '.join(rows[0].classes)}"))
    if len(chosen) == 1 and any(row.source is None for row in rows):
        damaged = next((row.problem for row in rows if row.problem), None)
        help_ = "docs/own_data.md says how pictures have to lie" if is_own else "data/README.md says how to get it"
        raise DataError(damaged or f"{rows[0].suite} is incomplete below {where}; {help_}")


@data.command("pack")
@click.argument("source", type=NamedPath())
@click.argument("suite")
@click.option("-o", "--out", type=NamedPath(), required=True, help="Folder for the packed files.")
@click.option("--size", type=click.IntRange(min=1), default=64, show_default=True, help="Side of the packed images.")
def pack_data(source: Path, suite: str, out: Path, size: int) -> None:
    """Pack the pictures in SOURCE/SUITE, e.g. <domain>/<class>/*, into one .npz file per domain."""
    from fedml_dapper.datasets.packing import pack

    for file in pack(source, suite, out, size):
        click.echo(file)
