"""``fedml-dapper report``: the HTML page of what a folder holds, written anew."""

from __future__ import annotations

from pathlib import Path

import click

from fedml_dapper.benches.report import write_bench_report
from fedml_dapper.benches.results import MANIFEST_NAME
from fedml_dapper.evaluation import write_run_report


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the HTML report of a run's folder from its ledger, or of a bench's folder from its cells' ledgers."""
    is_bench = (folder / MANIFEST_NAME).exists()
    path = write_bench_report(folder) if is_bench else write_run_report(folder)
    click.echo(path.absolute())
