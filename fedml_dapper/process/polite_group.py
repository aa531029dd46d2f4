"""A command line that ends by one line where something is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from fedml_dapper.process.complaint import complaining
from fedml_dapper.process.interruption import ending_in_order
from fedml_dapper.process.lack_of_memory import naming_lack_of_memory


class PoliteGroup(click.Group):
    """Ends at one of our own errors by one line on stderr and exit code 2, at an interruption by one and 130."""

    program: ClassVar[str]
    """What the lines begin with."""

    def main(self, *args: Any, **settings: Any) -> Any:
        with complaining(self.program):  # around all, as --help and --version write before anything is invoked
            return super().main(*args, **settings)

    def invoke(self, ctx: click.Context) -> object:
        with ending_in_order(self.program), naming_lack_of_memory():  # within, as click has an end of its own for both
            return super().invoke(ctx)
