"""Which domains can be had on this machine; what ``fedml-dapper data check`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.suites import find_recipe
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


def find_domains(suite_name: str, root: Path) -> list[DomainStatus]:
    """The state of every domain of a suite; its files are read and checked in full, and nothing is downloaded."""
    suite = find_recipe(suite_name)
    return [_status(suite, recipe, root) for recipe in suite.domains]


def missing_domains(suite_name: str, root: Path) -> list[str]:
    """The domains of a suite for which nothing is there; a quick look that reads no file."""
    return [domain.name for domain in find_recipe(suite_name).domains if not domain.exists(root)]


def _status(suite: SuiteRecipe, recipe: DomainRecipe, root: Path) -> DomainStatus:
    try:
        found = recipe.find(suite.request(root))
    except DataError as error:
        return DomainStatus(suite.name, recipe.name, None, 0, 0, False, recipe.places, problem=str(error))
    if found is None:
        return DomainStatus(suite.name, recipe.name, None, 0, 0, False, recipe.places)
    return DomainStatus(
        suite.name, found.name, found.source, len(found.train), len(found.test), found.is_subset, recipe.places
    )
