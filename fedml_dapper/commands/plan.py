"""``fedml-dapper plan``: show what the devices of a fleet can run, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import TypeAdapter
from rich.console import Console

from fedml_dapper.commands.options import json_option, shipped_where_missing
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError

if TYPE_CHECKING:
    from fedml_dapper.evaluation.fleet_tables import PlannedMethod
    from fedml_dapper.fleet import FleetPlan

COMPARED = ("fedavg", "heterofl", "dapperfl", "dapperfl_slim")
"""Methods that the experiment's own method is compared with."""


@click.command()
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    required=True,
    callback=shipped_where_missing,
    help="Experiment file, or the name of a shipped one; several are merged.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option("--method", "methods", multiple=True, help="Methods to plan for, besides the experiment's own.")
@json_option
def plan(configs: Sequence[Path], overrides: Sequence[str], methods: Sequence[str], as_json: bool) -> None:
    """Say which level each client's device can run, what limits it, and who is left out under each method."""
    from fedml_dapper.evaluation.fleet_tables import PlannedMethod, methods_table, plan_table, speeds_table
    from fedml_dapper.evaluation.terminal import say
    from fedml_dapper.federation.privacy.account_of_run import describe_protection, settled_privacy, settled_secure_sums
    from fedml_dapper.fleet import FleetPlan

    settings = load_settings(configs, overrides)
    fleet = settings.dapper_args.fleet
    if fleet is None or not fleet.names:
        raise ConfigError(
            "dapper_args.fleet: the experiment names no devices; say which devices the clients have, e.g."
            " --set 'dapper_args.fleet={devices: [raspberry_pi_5, raspberry_pi_4], round_s: 60}'"
        )
    names = dict.fromkeys((settings.dapper_args.method, *(methods or COMPARED)))
    with redirect_stdout(sys.stderr):
        found = _plans(settings, tuple(names))
    planned = [PlannedMethod.of(one) if isinstance(one, FleetPlan) else one for one in found]
    if as_json:
        click.echo(TypeAdapter(list[PlannedMethod]).dump_json(planned))
        return
    console = Console()
    plans = [one for one in found if isinstance(one, FleetPlan)]
    if plans:
        console.print(speeds_table(plans[0]))
    for one in planned:
        if not one.refused:
            console.print(plan_table(one))
    console.print(methods_table(planned, fleet.round_s))
    secure = settled_secure_sums(settings, settled_privacy(settings))
    if secure is not None and not settings.common_args.is_simulation:
        say(
            console,
            f"Secure aggregation: {describe_protection(secure.rules, settings.train_args.client_num_per_round)}.",
        )


def _plans(settings: Settings, methods: Sequence[str]) -> list[FleetPlan | PlannedMethod]:
    """Plan each of ``methods``; where one is not possible here, return the reason."""
    from fedml_dapper.evaluation.fleet_tables import PlannedMethod
    from fedml_dapper.federation import build_untrained, device_of, load_data, solved_settings
    from fedml_dapper.fleet import plan_fleet, with_fitted_levels
    from fedml_dapper.pruning import Device

    args = settings.dapper_args
    device = device_of(settings)
    assert args.fleet is not None
    data = load_data(settings, device)
    clients = [Device(one.client_id, one.domain, one.num_samples) for one in data.division.clients]
    found: list[FleetPlan | PlannedMethod] = []
    for name in methods:
        chosen = settings.model_copy(update={"dapper_args": args.model_copy(update={"method": name})})
        try:
            build = partial(build_untrained, num_classes=data.num_classes, example=data.example)
            solved = solved_settings(chosen, data.num_classes, data.example)
            method = build(with_fitted_levels(solved, clients, build))
            found.append(plan_fleet(args.fleet, method, settings.model_args, clients))
        except ConfigError as error:
            if name == args.method or str(error).startswith("dapper_args.fleet"):
                raise
            found.append(PlannedMethod(method=name, refused=str(error)))
    return found
