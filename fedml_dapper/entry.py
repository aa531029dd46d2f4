"""The installed ``fedml-dapper``."""

from __future__ import annotations

from fedml_dapper.interruption import ending_in_order


def main() -> None:
    """Load the command line and run it."""
    with ending_in_order("fedml-dapper"):
        from fedml_dapper.cli import main as command  # noqa: PLC0415  # slow: within reach of Ctrl-C

        command(prog_name="fedml-dapper")


if __name__ == "__main__":
    main()
