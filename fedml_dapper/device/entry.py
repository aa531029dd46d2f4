"""Entry point of the installed command ``dapper-device``."""

from __future__ import annotations

from fedml_dapper.process.closed_streams import fill_closed_streams
from fedml_dapper.process.interruption import ending_in_order

GOING_ON = "interrupted; the same command goes on with what this device keeps"


def main() -> None:
    """Load the command line and run it."""
    fill_closed_streams()
    with ending_in_order("dapper-device", GOING_ON):
        from fedml_dapper.device.commands import main as command  # noqa: PLC0415  # slow; Ctrl-C is handled here

        command(prog_name="dapper-device")


if __name__ == "__main__":
    main()
