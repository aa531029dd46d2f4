"""Every method on one experiment, in one process and, if asked, under MPI: accuracy, cost relative to FedAvg, parity.

Resumable: a method whose ledger is complete in the output folder is not run again. Results are the ledgers in that
folder and ``methods.json``, which the printed table is made of.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from fedml_dapper.federation import LEDGER_NAME, MODEL_NAME, RoundRecord, read_ledger
from fedml_dapper.methods import METHODS
from fedml_dapper.process.provenance import machine

CONFIGS = Path(__file__).parents[1] / "config"
ALL = [name for name in METHODS if not METHODS[name].needs_adapters]
"""All methods that take any network; those for adapters want an experiment that has some."""


@click.command()
@click.option("--config", type=click.Path(exists=True, path_type=Path), default=CONFIGS / "digits_offline.yaml")
@click.option("--rounds", default=5, show_default=True)
@click.option("--methods", "names", default=",".join(ALL), help="Comma-separated; all by default.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--mpi", "ranks", type=int, help="Run under MPI too, with this many ranks, and compare the models.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the results.")
def main(config: Path, rounds: int, names: str, overrides: tuple[str, ...], ranks: int | None, output: Path) -> None:
    """Run METHODS on CONFIG and compare them."""
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    chosen = names.split(",")
    for number, name in enumerate(chosen, start=1):
        console.print(f"{number}/{len(chosen)} {name}", highlight=False)
        common = [f"comm_round={rounds}", "threads=1", *overrides]
        _run(output / name, [sys.executable, "-m", "fedml_dapper"], config, name, common)
        if ranks is not None:
            mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
            under_mpi = [*common, "comm_args.backend=MPI"]
            _run(
                output / f"{name}-mpi",
                [*mpiexec, sys.executable, "-m", "fedml_dapper"],
                config,
                name,
                under_mpi,
            )
    rows = [_row(output, name) for name in chosen]
    document = {"name": f"methods on {config.stem}, {rounds} rounds", "machine": machine(), "methods": rows}
    (output / "methods.json").write_text(json.dumps(document, indent=1) + "\n")
    console.print(_table(document), machine())


def _run(folder: Path, program: Sequence[str], config: Path, name: str, overrides: Sequence[str]) -> None:
    """Run a method, or go on with what ``folder`` has of the same run; another one in it is refused."""
    resume = ["--resume"] if (folder / LEDGER_NAME).exists() else []
    files = ["--cf", str(config), "--cf", str(CONFIGS / "methods" / f"{name}.yaml")]
    values = [part for override in overrides for part in ("--set", override)]
    finished = subprocess.run(
        [*program, *files, *values, "--output", str(folder), *resume], capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        raise click.ClickException(f"{name}: {finished.stderr[-2000:]}")


def _row(output: Path, name: str) -> dict[str, Any]:
    run, rounds = read_ledger(output / name / LEDGER_NAME)
    scores = [record.scores for record in rounds if record.scores is not None]
    row: dict[str, Any] = {
        "method": name,
        "global_accuracy": [round(score.global_accuracy, 2) for score in scores],
        "domain_accuracy": {domain: round(value, 2) for domain, value in scores[-1].domain_accuracy.items()},
        "personal_accuracy": [round(record.personal.overall, 2) for record in rounds if record.personal is not None],
        "client_seconds": sum(client.seconds for record in rounds for client in record.clients),
        "macs_of_weakest": run.footprints[-1].macs,
        "bytes_up": _per_round(rounds, "bytes_up"),
        "bytes_down": _per_round(rounds, "bytes_down"),
    }
    mpi = output / f"{name}-mpi"
    if (mpi / MODEL_NAME).exists():
        ours, theirs = load_file(output / name / MODEL_NAME), load_file(mpi / MODEL_NAME)
        same = ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
        row["same_under_mpi"] = same and _without_seconds(rounds) == _without_seconds(read_ledger(mpi / LEDGER_NAME)[1])
    return row


def _per_round(rounds: Sequence[RoundRecord], field: str) -> float:
    return sum(float(getattr(client, field)) for record in rounds for client in record.clients) / len(rounds)


def _without_seconds(rounds: Sequence[RoundRecord]) -> list[Any]:
    return [
        (record.scores, record.personal, [client.model_copy(update={"seconds": 0.0}) for client in record.clients])
        for record in rounds
    ]


def _table(document: dict[str, Any]) -> Table:
    table = Table(title=document["name"])
    headings = (
        "method",
        "domains (%)",
        "clients' own (%)",
        "training time",
        "bytes up",
        "bytes down",
        "same under MPI",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    reference = next((row for row in document["methods"] if row["method"] == "fedavg"), document["methods"][0])
    for row in document["methods"]:
        shares = (
            row[key] / reference[key] if reference[key] else 0.0 for key in ("client_seconds", "bytes_up", "bytes_down")
        )
        parity = {True: "yes", False: "NO", None: "-"}[row.get("same_under_mpi")]
        accuracies = (row["global_accuracy"], row["personal_accuracy"])
        shown = (f"{values[-1]:.1f}" if values else "-" for values in accuracies)
        table.add_row(row["method"], *shown, *(f"{value:.2f}" for value in shares), parity)
    table.caption = f"time and bytes relative to {reference['method']}; one run each, so times are rough"
    return table


if __name__ == "__main__":
    main()
