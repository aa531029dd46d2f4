"""Entry point of the installed command ``fedml-dapper``."""

from __future__ import annotations

from fedml_dapper.process.closed_streams import fill_closed_streams
from fedml_dapper.process.interruption import ending_in_order


def main() -> None:
    """Load the command line and run it."""
    fill_closed_streams()
    with ending_in_order("fedml-dapper"):
        from fedml_dapper.cli import main as command  # noqa: PLC0415  # slow, so it is imported where Ctrl-C is handled

        command(prog_name="fedml-dapper")


if __name__ == "__main__":
    main()
