"""The ``fedml-dapper`` command."""

from __future__ import annotations

from pathlib import Path

import click

from fedml_dapper import __version__
from fedml_dapper.benches.command import bench
from fedml_dapper.benches.report import write_bench_report
from fedml_dapper.benches.results import MANIFEST_NAME
from fedml_dapper.datasets.command import data
from fedml_dapper.doctor import doctor
from fedml_dapper.errors import DapperError
from fedml_dapper.evaluation.search_command import search
from fedml_dapper.footprint_command import footprint
from fedml_dapper.interruption import ending_in_order
from fedml_dapper.run_command import run, write_run_report


class _PoliteGroup(click.Group):
    """Turns our own errors into one line on stderr and exit code 2, interruptions into one and 130."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            with ending_in_order("fedml-dapper"):
                return super().invoke(ctx)
        except DapperError as error:
            click.echo(f"fedml-dapper: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_PoliteGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedml-dapper")
def main() -> None:
    """DapperFL on FedML: federated learning on physically pruned models under domain shift."""


for _command in (bench, data, doctor, footprint, run, search):
    main.add_command(_command)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Write the HTML report of a run's folder from its ledger, or of a bench's folder from its cells' ledgers."""
    is_bench = (folder / MANIFEST_NAME).exists()
    path = write_bench_report(folder) if is_bench else write_run_report(folder)
    click.echo(path.absolute())
