"""Which domains can be had on this machine; what ``fedml-dapper data check`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.suites import PUBLISHED, data_root, find_recipe, load_suite
from fedml_dapper.errors import DataError


@dataclass(frozen=True)
class DomainStatus:
    """One domain of a suite as found; without a ``source`` it is missing or, when there is a ``problem``, damaged."""

    suite: str
    domain: str
    """The domain that would be used: a stand-in's name where one serves."""
    source: str | None
    num_train: int
    num_test: int
    is_subset: bool
    looked_in: tuple[str, ...]
    """Places below the root of the data, in order of preference."""
    problem: str | None = None
    classes: tuple[str, ...] = ()
    """Of the suite; for data of one's own, which says them itself."""


def find_domains(args: DataArgs) -> list[DomainStatus]:
    """The state of every domain of a suite; its files are read and checked in full, and nothing is downloaded."""
    recipe = find_recipe(args)
    if recipe is None:
        suite = load_suite(args)
        return [
            DomainStatus(
                suite.name, domain.name, domain.source, len(domain.train), len(domain.test), False, (),
                classes=suite.classes,
            )
            for domain in suite.domains
        ]  # fmt: skip
    root = data_root(args.data_cache_dir)
    classes = () if args.dataset in PUBLISHED else recipe.classes
    return [_status(recipe, domain, root, args, classes) for domain in recipe.domains]


def missing_domains(suite_name: str, root: Path) -> list[str]:
    """The domains of a published suite for which nothing is there; a quick look that reads no file."""
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
        suite.name, found.name, found.source, len(found.train), len(found.test), found.is_subset, recipe.places,
        classes=classes,
    )  # fmt: skip
