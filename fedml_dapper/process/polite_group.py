"""A command line that ends by one line where something is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from fedml_dapper.process.complaint import complaining
from fedml_dapper.process.interruption import GOING_ON, ending_in_order
from fedml_dapper.process.lack_of_memory import naming_lack_of_memory


class PoliteGroup(click.Group):
    """Ends at one of our own errors by one line on stderr and exit code 2, at an interruption by one and 130."""

    program: ClassVar[str]
    """What the lines begin with."""
    going_on: ClassVar[str] = GOING_ON
    """What the line of an interruption says."""

    def main(self, *args: Any, **settings: Any) -> Any:
        with complaining(self.program):  # around all, as --help and --version write before anything is invoked
            return super().main(*args, **settings)

    def invoke(self, ctx: click.Context) -> object:
        # within, as click has an end of its own for both
        with ending_in_order(self.program, self.going_on), naming_lack_of_memory():
            return super().invoke(ctx)
