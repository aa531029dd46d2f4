"""Entry point of the installed command ``fedml-dapper``."""

from __future__ import annotations

from fedml_dapper.process.interruption import ending_in_order


def main() -> None:
    """Load the command line and run it."""
    with ending_in_order("fedml-dapper"):
        from fedml_dapper.cli import main as command  # noqa: PLC0415  # slow, so it is imported where Ctrl-C is handled

        command(prog_name="fedml-dapper")


if __name__ == "__main__":
    main()
