"""``fedml-dapper compare``: compare finished runs."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console

from fedml_dapper.config.named_path import NamedPath


@click.command()
@click.argument("folders", metavar="RUN RUN...", nargs=-1, required=True, type=NamedPath())
@click.option(
    "-o",
    "--output",
    type=NamedPath(dir_okay=False),
    default=Path("comparison.html"),
    show_default=True,
    help="Where the page goes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, and write no page.")
def compare(folders: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Lay runs side by side: what each reached over rounds, bytes and virtual time, and which settings differ."""
    from fedml_dapper.evaluation.comparison import compare as compared

    if len(folders) < 2:
        raise click.UsageError("give at least two runs' folders")
    comparison = compared(folders)
    if as_json:
        click.echo(TypeAdapter(dict).dump_json(comparison.document(), indent=2))
        return
    from fedml_dapper.evaluation.comparison_page import comparison_table, difference_table, write_comparison
    from fedml_dapper.evaluation.terminal import say

    console = Console()
    console.print(comparison_table(comparison))
    if comparison.differences:
        console.print(difference_table(comparison))
    for each in comparison.runs:
        if each.summary.not_finite is not None:
            say(console, f"{each.name}: {each.summary.not_finite}")
    write_comparison(output, comparison)
    click.echo(output.absolute())
