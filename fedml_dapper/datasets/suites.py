"""Suites that ``data_args.dataset`` can name, and how settings select and change them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from fedml_dapper.config import DataArgs, path_of, short_name
from fedml_dapper.datasets.digits import DIGITS
from fedml_dapper.datasets.digits_offline import DIGITS_OFFLINE
from fedml_dapper.datasets.domain import Suite
from fedml_dapper.datasets.fdse import DOMAINNET, OFFICE_CALTECH_FDSE, PACS
from fedml_dapper.datasets.fedcmd import IMAGE_SETS
from fedml_dapper.datasets.office_caltech import OFFICE_CALTECH
from fedml_dapper.datasets.own_data import Load, own_suite
from fedml_dapper.datasets.own_pictures import find_recipe_in, recipe_of
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import SuiteRecipe
from fedml_dapper.datasets.text_offline import TEXT_OFFLINE, load_texts
from fedml_dapper.datasets.text_offline import load as passages
from fedml_dapper.errors import ConfigError
from fedml_dapper.registry import Registry

FOLDER = "folder"
"""Name of the suite that consists of a user's own folder of pictures."""

PUBLISHED = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (DIGITS_OFFLINE, DIGITS, OFFICE_CALTECH, OFFICE_CALTECH_FDSE, PACS, DOMAINNET, *IMAGE_SETS)
    }
)
"""Suites whose domains and classes are known beforehand."""


def _in_folder(args: DataArgs) -> SuiteRecipe:
    if args.data_cache_dir is None and args.partition == "own":  # a server without data of its own
        return recipe_of((), (), args, FOLDER)
    if args.data_cache_dir is None:
        raise ConfigError(
            f"data_args.data_cache_dir: dataset {FOLDER} needs it; name the folder that has <domain>/<class>/ in it"
        )
    return find_recipe_in(args.data_cache_dir, args)


def _fits(found: object) -> str:
    """Reason why ``found`` is no data set; see :class:`Registry`."""
    return "" if callable(found) else "no function; write one that returns {domain: (train, test)} (docs/own_data.md)"


SUITES: Registry[SuiteRecipe | Load] = Registry(
    "data_args.dataset", "suite", {**PUBLISHED, FOLDER: _in_folder, TEXT_OFFLINE: passages}, _fits
)
"""Suites by the names that ``data_args.dataset`` takes."""

_OF_FOLDERS = ("test_share", "skip_damaged")
_OF_IMAGES = ("image_size", "horizontal_flip", "normalisation")


def load_suite(args: DataArgs, only: Collection[str] | None = None) -> Suite:
    """Load the suite that ``args`` ask for, with their image size, flips and normalisation.

    ``only`` names the domains to load; all by default.

    Raises:
        ConfigError: The suite is unknown or not named.
        DataError: Data are missing or damaged.
    """
    recipe = find_recipe(args)
    name = _name_of(args)
    if recipe is not None:
        return recipe.load(data_root(args.data_cache_dir), args.download, args.image_size, only)
    if name == TEXT_OFFLINE:
        suite = load_texts(args)
    else:
        load = SUITES.find(name)
        assert not isinstance(load, SuiteRecipe)
        suite = own_suite(load, short_name(name), args)
    if only is None:
        return suite
    chosen = tuple(domain for domain in suite.domains if domain.name in only)
    return replace(suite, domains=chosen, empty_example=suite.example)


def find_recipe(args: DataArgs) -> SuiteRecipe | None:
    """Return the recipe of the suite that ``args`` name, changed as they say; None for a function, and for texts."""
    name = _name_of(args)
    found = SUITES.find(name)
    if name == TEXT_OFFLINE:
        _refuse(args, ("classes",))
    if name == TEXT_OFFLINE or name not in SUITES:
        _refuse(args, _OF_FOLDERS + _OF_IMAGES)
        return None
    _refuse(args, ("arguments",) if name == FOLDER else ("arguments", "classes", *_OF_FOLDERS))
    recipe = found if isinstance(found, SuiteRecipe) else _in_folder(args)
    preprocessing = recipe.preprocessing
    measured_on = recipe.measured_on
    if args.horizontal_flip is not None:
        preprocessing = replace(preprocessing, horizontal_flip=args.horizontal_flip)
    match args.normalisation:
        case "imagenet":
            known = Preprocessing()
            preprocessing = replace(preprocessing, mean=known.mean, std=known.std)
            measured_on = None
        case "measured":
            measured_on = "training"
        case "none":
            preprocessing = replace(preprocessing, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
            measured_on = None
    return replace(recipe, preprocessing=preprocessing, measured_on=measured_on)


def _name_of(args: DataArgs) -> str:
    if args.dataset is None:
        raise ConfigError(
            "data_args.dataset: neither the experiment file nor the program says which data; name a suite, or pass"
            " FedML's eight-part tuple to the runner"
        )
    return args.dataset


def _refuse(args: DataArgs, keys: Sequence[str]) -> None:
    for key in keys:
        if getattr(args, key) != DataArgs.model_fields[key].default:
            raise ConfigError(f"data_args.{key}: means nothing to dataset {short_name(_name_of(args))}; leave it out")


def data_root(data_cache_dir: Path | None) -> Path:
    """Return the folder of the data: the setting, else the environment variable ``DAPPER_DATA``, else ``data``."""
    return data_cache_dir or path_of(os.environ.get("DAPPER_DATA") or "data")
