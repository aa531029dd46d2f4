"""``fedml-dapper report``: the HTML page of what a folder holds, written anew."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the HTML report of a run's folder from its ledger, or of a bench's folder from its cells' ledgers.

    Of a folder that holds runs and benches further below, all their reports are written, and a page that leads to them.
    """
    from fedml_dapper.benches.overview import holds_results, write_reports
    from fedml_dapper.benches.report import write_bench_report
    from fedml_dapper.benches.results import MANIFEST_NAME
    from fedml_dapper.evaluation import write_run_report
    from fedml_dapper.federation import LEDGER_NAME

    if (folder / MANIFEST_NAME).exists():
        path = write_bench_report(folder)
    elif (folder / LEDGER_NAME).exists() or not holds_results(folder):
        path = write_run_report(folder)
    else:
        path = write_reports(folder, lambda done: click.echo(f"  {done}", err=True))
    click.echo(path.absolute())
