"""Data that stay with their silo, and the test sets of the server."""

from __future__ import annotations

from dataclasses import replace

from fedml_dapper.config import DataArgs, SiloArgs, did_you_mean
from fedml_dapper.datasets.batches import ClientSamples, ClientTests, TestSamples
from fedml_dapper.datasets.division import Division
from fedml_dapper.datasets.domain import Suite
from fedml_dapper.datasets.partition import FEWEST, too_few
from fedml_dapper.datasets.suites import FOLDER, PUBLISHED, find_recipe, load_suite
from fedml_dapper.errors import ConfigError


def load_silo(args: DataArgs, silo: SiloArgs) -> Suite:
    """Load the suite with the silo's domain alone, from the silo's own folder.

    Raises:
        ConfigError: The suite lacks the domain, or no folder is named.
        DataError: Images are missing or damaged.
    """
    _check_classes(args)
    _check_preprocessing(args)
    place = args if silo.data_cache_dir is None else args.model_copy(update={"data_cache_dir": silo.data_cache_dir})
    known = find_recipe(place) or load_suite(place)
    names = [domain.name for domain in known.domains]
    if not names:
        raise ConfigError("silo_args.data_cache_dir: say in which folder the data of this silo lie")
    name = silo.domain if silo.domain is not None or len(names) > 1 else names[0]
    if name is None:
        raise ConfigError(f"silo_args.domain: say which domain this silo holds; known: {', '.join(names)}")
    if name not in names and len(names) > 1:
        raise ConfigError(f"silo_args.domain: no domain `{name}`{did_you_mean(name, names)}")
    suite = load_suite(place, only={name} if name in names else set(names))
    return replace(suite, domains=(replace(suite.domains[0], name=name),))


def load_server(args: DataArgs) -> Suite:
    """Load the suite with all its domains where ``data_args.data_cache_dir`` is set, else without any."""
    _check_classes(args)
    _check_preprocessing(args)
    return load_suite(args, only=None if args.data_cache_dir is not None else ())


def _check_classes(args: DataArgs) -> None:
    """Require ``classes`` in the settings, which all processes share, if the suite does not fix them."""
    if args.dataset in PUBLISHED:
        return
    are_given = isinstance(args.classes, tuple) if args.dataset == FOLDER else args.classes is not None
    if not are_given:  # a number says nothing of the order, and each folder has one of its own
        raise ConfigError(
            "data_args.classes: silos that hold data of their own need it; list the names of the classes, the same"
            " everywhere"
        )


def _check_preprocessing(args: DataArgs) -> None:
    """Require that pictures become inputs in the same way everywhere."""
    recipe = find_recipe(args) if args.dataset in PUBLISHED or args.dataset == FOLDER else None
    if recipe is not None and recipe.measured_on is not None:
        raise ConfigError(
            "data_args.normalisation: silos that hold data of their own would each measure other pictures; choose"
            " imagenet or none, the same everywhere"
        )


def silo_division(suite: Suite, client_id: int, batch_size: int, seed: int) -> Division:
    """Return the silo's division: it trains and tests its own model on its one domain."""
    [domain] = suite.domains
    if len(domain.train) < FEWEST:
        raise too_few(client_id, domain.name, len(domain.train), "give the silo more")
    tests = TestSamples(domain.name, domain.test)
    client = ClientSamples(client_id, domain.name, domain.train, batch_size, seed)
    unused = 0 if domain.validation is None else len(domain.validation)
    note = (
        f"domain {domain.name}: {unused} validation samples stay unused: silos with data of their own choose no round"
    )
    return Division((client,), (ClientTests(tests),), (), notes=(note,) if unused else ())


def server_division(suite: Suite) -> Division:
    """Return the server's division: no clients, and the test sets that the server has."""
    return Division((), (), tuple(TestSamples(domain.name, domain.test) for domain in suite.domains))
