"""From a typed command to its first training step."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from benchmarks.output import Figure, Findings, json_option

CONFIGS = Path(__file__).parents[1] / "config"
STEP = b" step 1/"
"""What the live line says after a client's first step."""
_PATIENCE_S = 120.0


@click.command()
@click.option("--config", type=click.Path(exists=True, path_type=Path), default=CONFIGS / "digits_offline.yaml")
@click.option("--runs", default=5, show_default=True)
@json_option
def main(config: Path, runs: int, as_json: bool) -> None:
    """Seconds until `fedml-dapper run` has made its first training step, and until `--help` has answered."""
    to_step = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            to_step.append(_seconds_to(["fedml-dapper", "run", "-c", str(config), "--output", folder], STEP))
    to_help = [_seconds_to(["fedml-dapper", "--help"], b"Usage") for _ in range(runs)]
    rows: list[dict[str, Figure]] = [
        {"what": "first training step", "seconds": median(to_step), "slowest": max(to_step)},
        {"what": "help", "seconds": median(to_help), "slowest": max(to_help)},
    ]
    Findings(f"Starting, {config.name}", runs, rows, are="medians of runs").show(as_json)


def _seconds_to(command: list[str], sign: bytes) -> float:
    """Seconds until ``command`` has written ``sign`` to its terminal; it is stopped then."""
    screen, terminal = pty.openpty()
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        written = b""
        try:
            while sign not in written:
                ready, _, _ = select.select([screen], [], [], _PATIENCE_S)
                if not ready:
                    raise click.ClickException(f"{command} says nothing more after: {written[-500:]!r}")
                try:
                    written += os.read(screen, 65536)
                except OSError as error:  # Linux's way to say that the terminal's other side is closed
                    raise click.ClickException(
                        f"{command} ended: {written[-1000:].decode(errors='replace')}"
                    ) from error
            return time.perf_counter() - started
        finally:
            process.kill()
            os.close(screen)


if __name__ == "__main__":
    main()
