"""The suites a config can name in ``data_args.dataset``, and how its settings become one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from fedml_dapper.config import DataArgs, did_you_mean
from fedml_dapper.datasets.digits import DIGITS
from fedml_dapper.datasets.digits_offline import DIGITS_OFFLINE
from fedml_dapper.datasets.domain import Suite
from fedml_dapper.datasets.fdse import DOMAINNET, OFFICE_CALTECH_FDSE, PACS
from fedml_dapper.datasets.fedcmd import IMAGE_SETS
from fedml_dapper.datasets.office_caltech import OFFICE_CALTECH
from fedml_dapper.datasets.recipe import SuiteRecipe
from fedml_dapper.errors import ConfigError

SUITES = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            DIGITS_OFFLINE, DIGITS, OFFICE_CALTECH, OFFICE_CALTECH_FDSE, PACS, DOMAINNET, *IMAGE_SETS
        )
    }
)  # fmt: skip


def load_suite(args: DataArgs) -> Suite:
    """The suite that ``args`` asks for, with its image size and flip settings applied.

    Raises :class:`ConfigError` for an unknown suite or none and :class:`DataError` for missing or damaged images.
    """
    if args.dataset is None:
        raise ConfigError(
            "data_args.dataset: neither the experiment file nor the program says which data; name a suite, or pass"
            " FedML's eight-part tuple to the runner"
        )
    suite = find_recipe(args.dataset).load(data_root(args.data_cache_dir), args.download, args.image_size)
    if args.horizontal_flip is None:
        return suite
    return replace(suite, preprocessing=replace(suite.preprocessing, horizontal_flip=args.horizontal_flip))


def find_recipe(name: str) -> SuiteRecipe:
    """The recipe of suite ``name``, or a :class:`ConfigError` that suggests one."""
    if name not in SUITES:
        raise ConfigError(f"data_args.dataset: no suite `{name}`{did_you_mean(name, SUITES)}")
    return SUITES[name]


def data_root(data_cache_dir: Path | None) -> Path:
    """Where data is looked for: the setting, else the environment variable ``DAPPER_DATA``, else ``data``."""
    return data_cache_dir or Path(os.environ.get("DAPPER_DATA") or "data")
