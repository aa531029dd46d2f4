"""Availability of domains on this machine, as ``fedml-dapper data check`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.suites import PUBLISHED, data_root, find_recipe, load_suite
from fedml_dapper.datasets.text_offline import TEXT_OFFLINE
from fedml_dapper.errors import DataError


@dataclass(frozen=True)
class DomainStatus:
    """One domain of a suite as found. Without a ``source`` it is missing or, with a ``problem``, damaged."""

    suite: str
    domain: str
    """Name of the domain that would be used: the stand-in's where one serves."""
    source: str | None
    num_train: int
    num_test: int
    is_subset: bool
    looked_in: tuple[str, ...]
    """Places below the root of the data, in order of preference."""
    problem: str | None = None
    classes: tuple[str, ...] = ()
    """Classes of the suite, for a user's own data; empty for published suites."""


def find_domains(args: DataArgs) -> list[DomainStatus]:
    """Read and check every domain of a suite in full; nothing is downloaded."""
    recipe = find_recipe(args)
    if recipe is None:
        suite = load_suite(args)
        return [
            DomainStatus(
                suite=suite.name,
                domain=domain.name,
                source=domain.source,
                num_train=len(domain.train),
                num_test=len(domain.test),
                is_subset=False,
                looked_in=(),
                classes=() if args.dataset == TEXT_OFFLINE else suite.classes,
            )
            for domain in suite.domains
        ]
    root = data_root(args.data_cache_dir)
    classes = () if args.dataset in PUBLISHED else recipe.classes
    return [_status(recipe, domain, root, args, classes) for domain in recipe.domains]


def missing_domains(suite_name: str, root: Path) -> list[str]:
    """Return the domains of a published suite of which no file exists; no file is read."""
    return [domain.name for domain in PUBLISHED[suite_name].domains if not domain.exists(root)]


def _status(
    suite: SuiteRecipe, recipe: DomainRecipe, root: Path, args: DataArgs, classes: tuple[str, ...]
) -> DomainStatus:
    try:
        found = recipe.find(suite.request(root, image_size=args.image_size))
    except DataError as error:
        return DomainStatus(suite.name, recipe.name, None, 0, 0, False, recipe.places, str(error), classes)
    if found is None:
        return DomainStatus(suite.name, recipe.name, None, 0, 0, False, recipe.places)
    return DomainStatus(
        suite=suite.name,
        domain=found.name,
        source=found.source,
        num_train=len(found.train),
        num_test=len(found.test),
        is_subset=found.is_subset,
        looked_in=recipe.places,
        classes=classes,
    )
