"""``fedml-dapper search``: search hyper-parameters by Bayesian optimisation on validation samples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
from rich.console import Console

from fedml_dapper.commands.options import read_seeds, shipped_where_missing
from fedml_dapper.config import load_settings
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.process.extras import need
from fedml_dapper.process.interruption import INTERRUPTED, SAME_COMMAND, ending_in_order, reraising_interruption
from fedml_dapper.search.choices import SamplerName


@click.command()
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    callback=shipped_where_missing,
    help="Experiment file; several are laid over each other. Without any, DIR's results are shown and drawn again.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting of the experiment.")
@click.option("--params", "names", default="", help="Settings to search, comma-separated, in their default ranges.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=LOW:HIGH[:log]",
    help="Search this setting in this range, e.g. gamma=1e-5:0.1:log.",
)
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="How many, earlier included.")
@click.option(
    "--seeds", default="", help="Comma-separated: a trial's score is the mean over them; default: the file's."
)
@click.option("--sampler", type=click.Choice(get_args(SamplerName)), default="gp", show_default=True)
@click.option("--prune", is_flag=True, help="Stop trials that stay below the median of the others.")
@click.option("--output", "folder", type=NamedPath(), metavar="DIR", required=True)
@ending_in_order("fedml-dapper", SAME_COMMAND)
def search(
    configs: Sequence[Path],
    overrides: Sequence[str],
    names: str,
    ranges: Sequence[str],
    trials: int,
    seeds: str,
    sampler: SamplerName,
    prune: bool,
    folder: Path,
) -> None:
    """Search a method's settings for the best validation accuracy.

    A trial trains the experiment with other settings, once a seed; test images play no part in what is tried or chosen.
    The same command goes on with what is in DIR, until there are as many trials as asked for.
    """
    need("fedml-dapper search", "optuna", install="fedml-dapper[search]")
    from fedml_dapper.federation import build_experiment
    from fedml_dapper.search.journal import read_search
    from fedml_dapper.search.search_figures import count
    from fedml_dapper.search.search_terminal import SearchProgress, show_best
    from fedml_dapper.search.space import search_space
    from fedml_dapper.search.trials import plan_search, run_search

    console = Console()
    if not configs:
        show_best(read_search(folder), folder, console)
        return
    settings = load_settings(configs, overrides)
    experiment = build_experiment(settings)
    method = experiment.method
    space = search_space(
        type(method),
        settings.dapper_args.params.get(method.name, {}),
        [name for name in names.split(",") if name],
        ranges,
    )
    plan = plan_search(experiment, space, sorted(read_seeds(seeds)) if seeds else (), sampler, prune)
    try:
        with reraising_interruption(), SearchProgress(Console(stderr=True), plan, trials) as progress:
            record = run_search(plan, folder, trials, [progress])
    except KeyboardInterrupt:
        console.print(f"Stopped. The same command goes on with the search in {folder}.", soft_wrap=True)
        sys.exit(INTERRUPTED)
    if len(record.trials) < trials:
        console.print(f"Every combination in these ranges was tried: {count(record.trials, 'trial')}.")
    show_best(record, folder, console)
