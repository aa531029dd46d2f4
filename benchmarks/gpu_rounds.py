"""Rounds of a bench's methods on a GPU, each method in a run of its own, one after another in this process."""

from __future__ import annotations

from statistics import median

import click
import torch

from benchmarks.output import Figure, Findings, json_option
from fedml_dapper.benches.grid import Cell, cells, load_bench
from fedml_dapper.config import parse_override
from fedml_dapper.federation import build_experiment, simulate

FIRST = 3
"""Round from which on rounds are alike: in the ones before it, steps are recorded."""


@click.command()
@click.option("--bench", default="table2", show_default=True)
@click.option("--only", multiple=True, metavar="LABEL", help="Rows of the bench; all when absent.")
@click.option("--rounds", default=14, show_default=True, type=click.IntRange(min=FIRST))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="For instance capture=off.")
@json_option
def main(bench: str, only: tuple[str, ...], rounds: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Seconds of a round at the paper's size, in bf16. Skips where torch finds no GPU."""
    if not torch.cuda.is_available():
        click.echo("skipped: torch finds no GPU on this machine", err=True)
        return
    torch.set_num_threads(1)
    changes: dict[str, object] = {}
    for override in (f"comm_round={rounds}", "workers=1", *overrides):
        parse_override(changes, override)
    chosen = cells(load_bench(bench), "paper", seeds=(1,), device="cuda", precision="bf16", overrides=changes)
    rows = [_row(cell) for cell in chosen if not only or cell.variant.label in only]
    Findings(f"Rounds of {bench} on an {torch.cuda.get_device_name()}", 1, rows, are="figures of one run").show(as_json)


def _row(cell: Cell) -> dict[str, Figure]:
    _, records = simulate(build_experiment(cell.settings))
    seconds = [record.seconds.total for record in records]
    alike = seconds[FIRST - 1 :]
    return {
        "method": cell.variant.label,
        "rounds": len(alike),
        "seconds": median(alike),
        "least": min(alike),
        "most": max(alike),
        "first round": seconds[0],
    }


if __name__ == "__main__":
    main()
