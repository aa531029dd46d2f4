"""Overview of an experiment before it starts, as tables for the terminal: clients, domains, levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.columns import Columns
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from fedml_dapper.config import Settings, short_name
from fedml_dapper.evaluation.run_tables import footprint_table
from fedml_dapper.evaluation.terminal import as_wide_as_its_title
from fedml_dapper.federation import Experiment, level_footprints
from fedml_dapper.methods import ClientProfile

_ONE_BY_ONE = 20
"""Most clients that get a row each; with more, those of one domain and level share a row."""


def experiment_tables(experiment: Experiment) -> Group:
    """Return tables of the clients, of the domains' samples, and of what each capability level's model costs."""
    settings = experiment.settings
    footprints = level_footprints(experiment.method)
    levels = footprint_table(footprints, f"Levels: {_model_name(settings)} under {experiment.method.name}")
    scoped = experiment.method.problem.scoped
    if scoped is not None and scoped.why:
        levels.caption = f"cut in scope {scoped.scope}: {scoped.why}"
    if experiment.silos_have_own_data:
        return Group(
            f"Up to {settings.train_args.client_num_in_total} silos say what they hold when they join.", levels
        )
    return Group(Columns([clients_table(experiment), domains_table(experiment)], padding=(0, 3)), levels)


def _model_name(settings: Settings) -> str:
    return "the program's network" if settings.model_args.model is None else short_name(settings.model_args.model)


def clients_table(experiment: Experiment) -> Table:
    """Return a table with a row per client, or per domain and level where there are many."""
    profiles = experiment.profiles
    training = experiment.settings.train_args
    table = Table(title=f"{len(profiles)} clients")
    grouped = len(profiles) > _ONE_BY_ONE
    table.add_column("clients" if grouped else "client", justify="right")
    table.add_column("domain")
    for heading in ("level", "ratio", "samples"):
        table.add_column(heading, justify="right")
    rows = _grouped(profiles) if grouped else ((p.client_id, p, p.num_samples) for p in profiles)
    for clients, profile, samples in rows:
        table.add_row(str(clients), escape(profile.domain), str(profile.level), f"{profile.ratio:g}", str(samples))
    if training.client_num_per_round < len(profiles):
        table.caption = f"{training.client_num_per_round} of them train in each round"
    return as_wide_as_its_title(table)


def _grouped(profiles: tuple[ClientProfile, ...]) -> Iterator[tuple[int, ClientProfile, int]]:
    """Number of clients of a domain and level, one of them, and their samples in all."""
    groups: dict[tuple[str, int], list[ClientProfile]] = {}
    for profile in profiles:
        groups.setdefault((profile.domain, profile.level), []).append(profile)
    for _, members in sorted(groups.items()):
        yield len(members), members[0], sum(member.num_samples for member in members)


def domains_table(experiment: Experiment) -> Table:
    """Return a table of what each domain's clients train on, and what the global model is tested on."""
    table = Table(title=escape(f"Domains of {experiment.suite_label}"))
    table.add_column("domain")
    validated = {one.domain: one.num_samples for one in experiment.validations}
    for heading in ("clients", "to train on", "to test on", *(["to validate on"] if validated else [])):
        table.add_column(heading, justify="right")
    clients = Counter(profile.domain for profile in experiment.profiles)
    train = Counter[str]()
    for profile in experiment.profiles:
        train[profile.domain] += profile.num_samples
    for test in experiment.tests:
        domain = test.domain
        counts = [clients[domain], train[domain], test.num_samples, *([validated[domain]] if validated else [])]
        table.add_row(escape(domain), *map(str, counts))
    if experiment.unseen is not None:
        unseen = experiment.unseen.test
        table.add_row(escape(f"{unseen.domain} (unseen)"), "0", "0", str(unseen.num_samples))
    return as_wide_as_its_title(table)
