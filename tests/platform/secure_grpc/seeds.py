"""A disturbed run for each of several seeds: what does not hold is said, and its folder kept; then all are shown."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
import torch

from benchmarks.output import Figure, Findings

seeds_option = click.option(
    "--seed", "seeds", multiple=True, type=int, default=[1], show_default=True, help="Several are allowed."
)
rounds_option = click.option("--rounds", default=20, show_default=True)


def run_seeds(
    name: str, seeds: Sequence[int], run: Callable[[Path, int], tuple[Mapping[str, Figure], list[str]]], as_json: bool
) -> NoReturn:
    """Exit code 1 where a run does not hold; ``run`` makes one in a folder, and gives its figures and what is wrong."""
    torch.set_num_threads(1)  # as silos have it: other numbers give other bits
    rows, failed = [], False
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        figures, problems = run(folder, seed)
        failed |= bool(problems)
        for problem in problems:
            click.echo(f"seed {seed}: {problem}; see {folder}", err=True)
        if not problems:
            shutil.rmtree(folder)
        rows.append({"seed": seed, **figures, "problems": len(problems)})
    Findings(name, 1, rows).show(as_json)
    raise SystemExit(int(failed))
