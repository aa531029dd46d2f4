"""Division of a suite: each client's training data, and the data that its own and the global model are tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedml_dapper.config import DataArgs, short_name
from fedml_dapper.datasets.batches import ClientData, ClientSamples, ClientTests, TestData, TestSamples
from fedml_dapper.datasets.domain import Suite
from fedml_dapper.datasets.own_samples import OwnSamples, dirichlet_halves, one_per_domain
from fedml_dapper.datasets.partition import Partition, client_data, dealt_by, partition
from fedml_dapper.datasets.samples import Samples
from fedml_dapper.errors import ConfigError
from fedml_dapper.registry import Registry


@dataclass(frozen=True, eq=False)
class Division:
    """Everyone's data: entries per client in client order, and sets per domain in the suite's order."""

    clients: tuple[ClientData, ...]
    client_tests: tuple[ClientTests, ...]
    domain_tests: tuple[TestData, ...]
    domain_validations: tuple[TestData, ...] = ()
    """Samples that nobody trains on or is tested on: one set per domain, or none at all."""
    notes: tuple[str, ...] = ()
    """Messages on what the partition had to do, to be logged."""

    def to(self, device: torch.device | str) -> Division:
        """Return the same division with all samples on ``device``."""
        return replace(
            self,
            clients=tuple(client.to(device) for client in self.clients),
            client_tests=tuple(own.to(device) for own in self.client_tests),
            domain_tests=tuple(test.to(device) for test in self.domain_tests),
            domain_validations=tuple(samples.to(device) for samples in self.domain_validations),
        )


def divide(suite: Suite, args: DataArgs, num_clients: int, batch_size: int, seed: int) -> Division:
    """Divide ``suite`` by the partition that ``args``, or else the suite, names; ``seed`` alone decides the draw.

    Raises:
        ConfigError: Settings do not go with the partition.
        DataError: A client has fewer than 2 training samples.
    """
    name = args.partition or suite.partition
    deal = PARTITIONS.find(name)
    _check(name, args)
    if name in PARTITIONS:
        division: Division = deal(suite, args, num_clients, batch_size, seed)
        return division
    dealt = dealt_by(deal, short_name(name), suite, num_clients, seed)
    return _by_domain(suite, args, dealt, batch_size, seed)


def _check(name: str, args: DataArgs) -> None:
    if name == "dirichlet" and args.dirichlet_alpha is None:
        raise ConfigError("data_args.dirichlet_alpha: partition dirichlet needs it; e.g. 0.1 (uneven) or 1.0 (mild)")
    belongs = {
        "dirichlet_alpha": (("dirichlet",), args.dirichlet_alpha is not None),
        "client_share": (tuple(PARTITIONS), args.client_share is not None),
        "clients": (("domain_shares",), args.clients is not None),
        "client_order": (("domain_shares",), args.client_order != "shuffled"),
        "max_clients_per_domain": (("domain_shares",), args.max_clients_per_domain is not None),
        "validation_share": (("domain_shares",), args.validation_share is not None),
    }
    for key, (owners, is_set) in belongs.items():
        if is_set and name not in owners:
            raise ConfigError(
                f"data_args.{key}: belongs to partition {' or '.join(owners)}, not {short_name(name)}; leave one of"
                " them out"
            )


def _domain_shares(suite: Suite, args: DataArgs, num_clients: int, batch_size: int, seed: int) -> Division:
    if args.validation_share is not None and any(domain.validation is not None for domain in suite.domains):
        raise ConfigError(
            f"data_args.validation_share: {suite.name} has validation samples of its own; leave the setting out"
        )
    shares = partition(
        suite,
        num_clients,
        args.client_share,
        seed,
        order=args.client_order,
        max_per_domain=args.max_clients_per_domain,
        validation_share=args.validation_share,
        stated=args.clients,
    )
    return _by_domain(suite, args, shares, batch_size, seed)


def _by_domain(suite: Suite, args: DataArgs, shares: Partition, batch_size: int, seed: int) -> Division:
    """Give clients parts of training sets, and the tests of their domains."""
    tests = tuple(TestSamples(domain.name, domain.test) for domain in suite.domains)
    held_out = [
        domain.validation if args.validation_share is None else domain.train.take(indices)
        for domain, indices in zip(suite.domains, shares.validation, strict=True)
    ]
    validations = tuple(
        TestSamples(domain.name, samples)
        for domain, samples in zip(suite.domains, held_out, strict=True)
        if samples is not None
    )
    own_tests = [ClientTests(test, validations[index] if validations else None) for index, test in enumerate(tests)]
    return Division(
        clients=tuple(client_data(suite, shares, batch_size, seed)),
        client_tests=tuple(own_tests[domain] for domain in shares.domains),
        domain_tests=tests,
        domain_validations=validations,
        notes=shares.notes,
    )


def _one_per_domain(suite: Suite, args: DataArgs, num_clients: int, batch_size: int, seed: int) -> Division:
    return _own_samples(suite, one_per_domain(suite, num_clients, seed, args.client_share), batch_size, seed)


def _dirichlet(suite: Suite, args: DataArgs, num_clients: int, batch_size: int, seed: int) -> Division:
    assert args.dirichlet_alpha is not None
    owned = dirichlet_halves(suite, num_clients, args.dirichlet_alpha, seed, args.client_share)
    return _own_samples(suite, owned, batch_size, seed)


def _own_samples(suite: Suite, owned: Sequence[OwnSamples], batch_size: int, seed: int) -> Division:
    clients: dict[int, ClientData] = {}
    client_tests: dict[int, ClientTests] = {}
    domain_tests = []
    domain_validations = []
    for index, domain in enumerate(suite.domains):
        pool = domain.merged()
        members = {client: own for client, own in enumerate(owned) if own.domain == index}
        train, _ = _deal(pool, [own.train for own in members.values()])
        validation, all_validation = _deal(pool, [own.validation for own in members.values()])
        test, all_test = _deal(pool, [own.test for own in members.values()])
        domain_tests.append(TestSamples(domain.name, all_test))
        if len(all_validation):
            domain_validations.append(TestSamples(domain.name, all_validation))
        for client, for_training, for_validation, for_test in zip(members, train, validation, test, strict=True):
            clients[client] = ClientSamples(client, domain.name, for_training, batch_size, seed)
            client_tests[client] = ClientTests(
                TestSamples(domain.name, for_test),
                TestSamples(domain.name, for_validation) if len(for_validation) else None,
            )
    order = range(len(owned))
    return Division(
        tuple(clients[client] for client in order),
        tuple(client_tests[client] for client in order),
        tuple(domain_tests),
        tuple(domain_validations) if len(domain_validations) == len(domain_tests) else (),
    )


def _deal(pool: Samples, parts: Sequence[Tensor]) -> tuple[list[Samples], Samples]:
    """Split ``pool`` into the samples at each of ``parts``, which are views of one copy, and return that copy too."""
    together = pool.take(torch.cat(list(parts)))
    return together.split([len(part) for part in parts]), together


def _fits(found: object) -> str:
    """Reason why ``found`` is no partition; see :class:`Registry`."""
    return "" if callable(found) else "no function; write one (docs/own_data.md)"


PARTITIONS: Registry[Callable[..., Any]] = Registry(
    "data_args.partition",
    "partition",
    {"domain_shares": _domain_shares, "one_per_domain": _one_per_domain, "dirichlet": _dirichlet},
    _fits,
    elsewhere=("own",),
)
"""Partitions by the names that ``data_args.partition`` takes; a user's function is called by :func:`dealt_by`."""
