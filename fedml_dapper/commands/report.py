"""``fedml-dapper report``: write the HTML report of a folder again."""

from __future__ import annotations

from pathlib import Path

import click

from fedml_dapper.commands.options import trust_code_option
from fedml_dapper.config.named_path import NamedPath


@click.command()
@click.argument("folder", type=NamedPath())
@trust_code_option
def report(folder: Path, trust_code: bool) -> None:
    """Write the HTML report of a run's folder from its ledger, or of a bench's folder from its cells' ledgers.

    Pictures that take code which no run of yours ran on this machine are left out, unless with --trust-code.
    Of a folder that holds runs and benches further below, all their reports are written, and a page that leads to them.
    """
    from fedml_dapper.evaluation import write_run_report
    from fedml_dapper.federation import LEDGER_NAME

    is_run = (folder / LEDGER_NAME).exists()
    written = write_run_report(folder, trust_code=trust_code) if is_run else _write_others(folder, trust_code)
    click.echo(written.absolute())


def _write_others(folder: Path, trust_code: bool) -> Path:
    """Write the report of a bench's folder, or those of all runs and benches further below."""
    from fedml_dapper.benches.bench_report import write_bench_report
    from fedml_dapper.benches.overview import holds_results, write_reports
    from fedml_dapper.benches.results import MANIFEST_NAME
    from fedml_dapper.evaluation import write_run_report

    if (folder / MANIFEST_NAME).exists():
        return write_bench_report(folder)
    if holds_results(folder):
        return write_reports(folder, lambda done: click.echo(f"  {done}", err=True), trust_code=trust_code)
    return write_run_report(folder)
