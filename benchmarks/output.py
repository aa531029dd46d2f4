"""How a benchmark says what it found: rows of figures, as a table or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click
from rich.console import Console
from rich.table import Table

from fedml_dapper.process.provenance import machine

Figure = str | float | int | bool
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


@dataclass(frozen=True)
class Findings:
    """A benchmark's name, how often it was run, its rows, and single figures beside them."""

    name: str
    runs: int
    rows: Sequence[Mapping[str, Figure]]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    are: str = "medians of paired runs"
    """What the rows' figures are."""

    def show(self, as_json: bool) -> None:
        """On stdout."""
        if as_json:
            document = {"name": self.name, "machine": machine(), "runs": self.runs, "are": self.are, **self.figures}
            click.echo(json.dumps(document | {"rows": [dict(row) for row in self.rows]}, indent=1))
            return
        table = Table(title=f"{self.name}; {self.are}, {self.runs} in all")
        for heading, value in self.rows[0].items():
            table.add_column(heading, justify="left" if isinstance(value, str) else "right")
        for row in self.rows:
            table.add_row(*(_shown(value) for value in row.values()))
        console = Console()
        console.print(table)
        for name, figure in self.figures.items():
            console.print(f"{name}: {_shown(figure)}", highlight=False)
        console.print(machine(), highlight=False)


def _shown(value: Figure) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
