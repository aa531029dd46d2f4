"""Options that several commands have."""

from __future__ import annotations

import click

resume_option = click.option(
    "--resume", is_flag=True,
    help="Go on with the run in the --output folder after its last checkpoint; start one where there is none.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
