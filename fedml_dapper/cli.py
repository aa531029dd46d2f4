"""The ``fedml-dapper`` command: gathers those of :mod:`fedml_dapper.commands`."""

from __future__ import annotations

import click

from fedml_dapper import __version__
from fedml_dapper.commands.adapt import adapt
from fedml_dapper.commands.audit import audit
from fedml_dapper.commands.bench import bench
from fedml_dapper.commands.calibrate import calibrate
from fedml_dapper.commands.compare import compare
from fedml_dapper.commands.complaint import complaining
from fedml_dapper.commands.data import data
from fedml_dapper.commands.doctor import doctor
from fedml_dapper.commands.export import export
from fedml_dapper.commands.footprint import footprint
from fedml_dapper.commands.plan import plan
from fedml_dapper.commands.predict import predict
from fedml_dapper.commands.report import report
from fedml_dapper.commands.run import run
from fedml_dapper.commands.search import search
from fedml_dapper.commands.settings import settings
from fedml_dapper.commands.silos import silos
from fedml_dapper.commands.status import status
from fedml_dapper.commands.steer import steer
from fedml_dapper.interruption import ending_in_order


class _PoliteGroup(click.Group):
    """Turns our own errors into one line on stderr and exit code 2, interruptions into one and 130."""

    def invoke(self, ctx: click.Context) -> object:
        with complaining("fedml-dapper"), ending_in_order("fedml-dapper"):
            return super().invoke(ctx)


@click.group(cls=_PoliteGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedml-dapper")
def main() -> None:
    """DapperFL on FedML: federated learning on physically pruned models under domain shift."""


for _command in (
    adapt, audit, bench, calibrate, compare, data, doctor, export, footprint, plan, predict, report, run, search,
    settings, silos, status, steer,
):  # fmt: skip
    main.add_command(_command)
