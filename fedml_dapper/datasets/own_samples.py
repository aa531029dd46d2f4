"""Partitions in which every client keeps some of its samples to test its own model on (FDSE, FedCMD).

Both start from all images of a domain, whatever split it was published with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.datasets.dirichlet_draws import MIN_SAMPLES, draw_until_enough
from fedml_dapper.datasets.domain import Suite
from fedml_dapper.datasets.partition import FEWEST, Indices, size_of_share, too_few
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.randomness.seeding import Stream, numpy_generator

_FEWEST_OF_DOMAIN = 10
"""Fewest samples of a domain of which a tenth is for testing."""
MERGING = ("one_per_domain", "dirichlet")
"""Partitions of this module, by name: clients train on samples of all parts of a domain."""


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """One client's samples: sorted, disjoint int64 indices into all images of ``domain``."""

    domain: int
    train: Tensor
    validation: Tensor
    test: Tensor


def one_per_domain(suite: Suite, num_clients: int, seed: int, share: float | None = None) -> list[OwnSamples]:
    """Give client i domain i: a tenth of it for testing, a tenth for validation, the rest for training (FDSE).

    ``share`` is the share of its training samples that a client uses.

    Raises:
        ConfigError: There are not as many clients as domains.
        DataError: A domain is too small to be tested on.
    """
    if num_clients != len(suite.domains):
        raise ConfigError(
            f"data_args.partition: one_per_domain needs one client for each of the {len(suite.domains)} domains of"
            f" {suite.name}, not {num_clients}; set train_args.client_num_in_total to {len(suite.domains)}"
        )
    owned = []
    for client, domain in enumerate(suite.domains):
        total = sum(len(part) for part in domain.parts)
        if total < _FEWEST_OF_DOMAIN:
            raise DataError(
                f"data_args.partition: one_per_domain tests on a tenth of a domain, and {domain.name} has {total}"
                f" samples; give it {_FEWEST_OF_DOMAIN} or more, leave it out, or choose another partition"
            )
        held_out = total // 5
        test = total // 10
        owned.append(_split(suite, client, np.arange(total), test, held_out - test, client, seed, share))
    return owned


def dirichlet_halves(
    suite: Suite, num_clients: int, alpha: float, seed: int, share: float | None = None
) -> list[OwnSamples]:
    """Give clients the samples of :func:`dirichlet`, a random half for training and the rest for testing (FedCMD).

    ``share`` is the share of its training samples that a client uses.

    Raises:
        ConfigError: The suite has several domains or no classes, or the partition is impossible.
    """
    if len(suite.domains) != 1:
        raise ConfigError(
            f"data_args.partition: dirichlet deals out one data set, and {suite.name} has {len(suite.domains)} domains;"
            " choose a data set such as mnist, or another partition"
        )
    labels = suite.domains[0].merged_labels()
    if labels is None:
        raise ConfigError(
            f"data_args.partition: dirichlet deals classes out, and the targets of {suite.name} are no classes; choose"
            " another partition"
        )
    held = dirichlet(labels.cpu().numpy(), num_clients, alpha, numpy_generator(seed, Stream.PARTITION))
    return [
        _split(suite, 0, indices, len(indices) - len(indices) // 2, 0, client, seed, share)
        for client, indices in enumerate(held)
    ]


def dirichlet(labels: Indices, num_clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Return sorted sample indices of each client, classes in proportions drawn from Dir(``alpha``).

    Class by class, clients that already hold their even share of all samples get none of it. The draw is repeated until
    every client holds ``MIN_SAMPLES``.

    Raises:
        ConfigError: There are too few samples, or no draw gives every client enough.
    """
    if num_clients * MIN_SAMPLES > len(labels):
        most = len(labels) // MIN_SAMPLES
        remedy = f"lower train_args.client_num_in_total to {most} or less" if most else "choose another partition"
        raise ConfigError(
            f"data_args.partition: {len(labels)} samples are too few for {num_clients} clients of {MIN_SAMPLES} or"
            f" more; {remedy}"
        )
    counts = draw_until_enough(np.bincount(labels), num_clients, alpha, rng)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    # shuffled only now, as the sizes of the shares do not depend on which samples are in them
    for label, shares in enumerate(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        for client, part in enumerate(np.split(members, np.cumsum(shares)[:-1])):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _split(
    suite: Suite,
    domain: int,
    indices: Indices,
    num_test: int,
    num_validation: int,
    client: int,
    seed: int,
    share: float | None,
) -> OwnSamples:
    shuffled = torch.from_numpy(numpy_generator(seed, Stream.PARTITION, client).permutation(indices))
    test, validation, train = torch.tensor_split(shuffled, (num_test, num_test + num_validation))
    used = train if share is None else train[: size_of_share(share, len(train))]
    if len(used) < FEWEST:
        name = suite.domains[domain].name
        raising = f"raise data_args.client_share, {share} of {len(train)}, to {FEWEST}/{len(train)} or more"
        raise too_few(client, name, len(used), raising if len(train) >= FEWEST else f"give domain {name} more")
    return OwnSamples(domain, used.sort().values, validation.sort().values, test.sort().values)
