"""Partition over clients: each gets a domain, drawn or stated, then a share of that domain's training set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.config import ClientArgs, did_you_mean
from fedml_dapper.datasets.batches import ClientData, ClientSamples
from fedml_dapper.datasets.domain import Domain, Suite
from fedml_dapper.datasets.items import seeded_everywhere
from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError, DapperError, DataError
from fedml_dapper.randomness.seeding import Stream, numpy_generator

Indices = NDArray[np.int64]
ClientOrder = Literal["shuffled", "official"]
FEWEST = 2
"""Fewest training samples of a client."""
_NAMED_ONE_BY_ONE = 100
"""Most clients with overlapping samples that get a message each."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client."""

    domains: tuple[int, ...]
    """Index of each client's domain."""
    indices: tuple[Tensor, ...]
    """Each client's samples: int64 indices into the training set of its domain."""
    validation: tuple[Tensor, ...]
    """For each domain, int64 indices of the training samples that no client gets."""
    notes: tuple[str, ...]
    """Messages, to be logged, on clients that share samples with earlier ones, and on domains without clients."""


def partition(
    suite: Suite,
    num_clients: int,
    share: float | None,
    seed: int,
    *,
    order: ClientOrder = "shuffled",
    max_per_domain: int | None = None,
    validation_share: float | None = None,
    stated: Sequence[ClientArgs] | None = None,
) -> Partition:
    """Divide ``suite`` among ``num_clients``, as DapperFL's experiments do.

    Clients of one domain are disjoint while its training set lasts; what a later client still lacks is drawn from the
    samples of others, and noted. Where the suite wants every class at every client, a missing class is taken from the
    free samples first, and otherwise from those of others.

    Args:
        share: Share of its domain's training set that a client holds. Defaults to the suite's own, or to an even one.
        order: See :func:`assign_domains`.
        max_per_domain: Most clients of one domain.
        validation_share: Share of each training set that is put aside first.
        stated: Domain and share of every client; drawn without it.

    Raises:
        ConfigError: Settings contradict each other or the suite.
        DataError: Too little is left for one client.
    """
    share = suite.client_share if share is None else share
    rng = numpy_generator(seed, Stream.PARTITION)
    if stated is None:
        domains = assign_domains(len(suite.domains), num_clients, rng, order, max_per_domain)
        shares = [share] * num_clients
    else:
        domains = _find_domains(suite, stated)
        shares = [client.share or share for client in stated]
    validation = [_hold_out(domain, index, validation_share, seed) for index, domain in enumerate(suite.domains)]
    pools = [_Pool(domain, held_out) for domain, held_out in zip(suite.domains, validation, strict=True)]
    indices: list[Tensor] = []
    notes = without_clients(suite, domains)
    overlapping: list[tuple[int, int]] = []
    for client, (index, count) in enumerate(zip(domains, _counts(suite, domains, shares, pools), strict=True)):
        domain = suite.domains[index]
        pool = pools[index]
        if count > len(pool.places):
            raise ConfigError(
                f"data_args.validation_share: {validation_share} and client_share {shares[client]} together are more"
                f" than the {len(domain.train)} training samples of {domain.name}; lower one of them"
            )
        if count < FEWEST:
            entry = None if stated is None else stated[client].share
            remedy = _more_for_one(domain, pool, shares[client], entry is not None, domains.count(index))
            raise too_few(client, domain.name, count, remedy)
        drawn = pool.draw(count, rng)
        if suite.swap_in_missing_classes:
            drawn = pool.swap_in_missing_classes(drawn, rng)
        indices.append(torch.from_numpy(np.sort(pool.places[drawn])))
        overlap = int((pool.holders[drawn] > 1).sum())
        if overlap:
            overlapping.append((client, overlap))
    if len(overlapping) > _NAMED_ONE_BY_ONE:
        notes.append(
            f"{len(overlapping)} of {num_clients} clients hold samples that others hold as well; a smaller client_share"
            " or fewer clients avoid this"
        )
    else:
        notes += [
            f"client {client} (domain {suite.domains[domains[client]].name}): {overlap} of {len(indices[client])}"
            " samples are also held by earlier clients; a smaller client_share or max_clients_per_domain avoids this"
            for client, overlap in overlapping
        ]
    return Partition(tuple(domains), tuple(indices), tuple(map(torch.from_numpy, validation)), tuple(notes))


def too_few(client: int, domain: str, count: int, remedy: str) -> DataError:
    """Return the error for a ``client`` that gets less than it can train on; ``remedy`` says what to do about it."""
    samples = "one training sample" if count == 1 else "no training sample"
    return DataError(f"client {client} (domain {domain}) gets {samples}, and training needs {FEWEST} or more; {remedy}")


def _more_for_one(domain: Domain, pool: _Pool, share: float | None, is_own: bool, members: int) -> str:
    """Say what to do where the draw leaves too little of ``domain`` for one of its ``members``."""
    total = len(domain.train)
    left = len(pool.places)
    if total < FEWEST:
        return f"give domain {domain.name} more, or leave it out"
    if share is not None and size_of_share(share, total) < FEWEST:
        key = "its share in data_args.clients" if is_own else "data_args.client_share"
        return f"raise {key}, {share:g} of {total}, to {FEWEST}/{total} or more"
    if left < total and total // members >= FEWEST:
        return f"lower data_args.validation_share, which puts {total - left} of {total} aside"
    return f"lower train_args.client_num_in_total: {members} clients divide {left} samples"


def dealt_by(deal: Callable[..., object], name: str, suite: Suite, num_clients: int, seed: int) -> Partition:
    """Partition ``suite`` as a user's function ``deal(suite, num_clients, seed)`` says, called ``name`` in errors.

    It returns ``(domain, indices)`` for every client: the domain's name and the indices into its training set.

    Raises:
        ConfigError: The function fails or returns anything else.
    """
    key = f"data_args.partition: {name}"
    try:
        with seeded_everywhere(seed):
            dealt = deal(suite, num_clients, seed)
            holdings = [(domain, torch.as_tensor(indices)) for domain, indices in dealt]  # type: ignore[attr-defined]  # it may return anything
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        raise ConfigError(
            f"{key}(suite, {num_clients}, {seed}) gives no list of (domain's name, indices):"
            f" {type(error).__name__}: {error}"
        ) from error
    if len(holdings) != num_clients:
        raise ConfigError(
            f"{key} gives {len(holdings)} clients their samples, train_args.client_num_in_total is {num_clients}"
        )
    places = {domain.name: index for index, domain in enumerate(suite.domains)}
    holders = [torch.zeros(len(domain.train), dtype=torch.int64) for domain in suite.domains]
    for client, (domain, indices) in enumerate(holdings):
        if not isinstance(domain, str):
            raise ConfigError(
                f"{key} gives client {client} a {type(domain).__name__} as its domain; give the domain's name, one of"
                f" {', '.join(places)}"
            )
        if domain not in places:
            raise ConfigError(f"{key} gives client {client} domain `{domain}`{did_you_mean(domain, places)}")
        if not indices.numel():
            raise too_few(client, domain, 0, f"let {name} deal it more")
        size = len(holders[places[domain]])
        if indices.dtype not in (torch.int64, torch.int32) or indices.dim() != 1:
            raise ConfigError(
                f"{key} gives client {client} {indices.dtype} {tuple(indices.shape)}; give a list of indices"
            )
        if not 0 <= int(indices.min()) <= int(indices.max()) < size:
            raise ConfigError(
                f"{key} gives client {client} indices from {int(indices.min())} to {int(indices.max())}; the training"
                f" set of {domain} has {size} samples"
            )
        if len(indices) < FEWEST:
            raise too_few(client, domain, len(indices), f"let {name} deal it more")
        if len(set(indices.tolist())) < len(indices):
            raise ConfigError(f"{key} gives client {client} a sample of {domain} twice")
        holders[places[domain]][indices] += 1
    shared = [
        f"domain {domain.name}: {int((counts > 1).sum())} samples are held by several clients"
        for domain, counts in zip(suite.domains, holders, strict=True)
        if (counts > 1).any()
    ]
    domains = [places[domain] for domain, _ in holdings]
    nothing = torch.empty(0, dtype=torch.int64)
    return Partition(
        domains=tuple(domains),
        indices=tuple(indices.to(torch.int64).sort().values for _, indices in holdings),
        validation=(nothing,) * len(suite.domains),
        notes=(*without_clients(suite, domains), *shared),
    )


def without_clients(suite: Suite, domains: Sequence[int]) -> list[str]:
    """Return a message on each domain of ``suite`` that is not among the clients' ``domains``."""
    unused = [domain.name for index, domain in enumerate(suite.domains) if index not in domains]
    return [f"no client holds images of domain {name}; the global model is tested on it" for name in unused]


def _counts(suite: Suite, domains: Sequence[int], shares: Sequence[float | None], pools: Sequence[_Pool]) -> list[int]:
    """Number of samples of every client: its share of its domain's training set, or an even share of the rest."""
    stated = [
        None if share is None else size_of_share(share, len(suite.domains[index].train))
        for index, share in zip(domains, shares, strict=True)
    ]
    even = []
    for index, pool in enumerate(pools):
        members = [count for domain, count in zip(domains, stated, strict=True) if domain == index]
        left = len(pool.places) - sum(count for count in members if count is not None)
        even.append(max(0, left) // max(1, members.count(None)))
    return [even[index] if count is None else count for index, count in zip(domains, stated, strict=True)]


def _hold_out(domain: Domain, index: int, share: float | None, seed: int) -> Indices:
    """Sorted indices of the validation samples. Their own stream makes them the same for any number of clients."""
    if share is None:
        return np.empty(0, dtype=np.int64)
    rng = numpy_generator(seed, Stream.VALIDATION, index)
    return np.sort(rng.permutation(len(domain.train))[: max(1, size_of_share(share, len(domain.train)))])


def assign_domains(
    num_domains: int,
    num_clients: int,
    rng: np.random.Generator,
    order: ClientOrder,
    max_per_domain: int | None,
) -> list[int]:
    """Return the domain of each client: every domain gets one client, the others draw uniformly.

    ``official`` keeps the guaranteed clients last, in domain order. With ``max_per_domain`` a draw is uniform over the
    domains that still have room.

    Raises:
        ConfigError: There are too few clients for the domains, or too many for ``max_per_domain``.
    """
    if num_clients < num_domains:
        raise ConfigError(
            f"{num_clients} clients cannot cover {num_domains} domains;"
            f" set train_args.client_num_in_total to {num_domains} or more"
        )
    limit = num_clients if max_per_domain is None else max_per_domain
    if limit * num_domains < num_clients:
        raise ConfigError(
            f"{num_domains} domains with at most {limit} clients each cannot hold {num_clients} clients;"
            f" set data_args.max_clients_per_domain to {-(-num_clients // num_domains)} or more"
        )
    guaranteed = list(range(num_domains))
    counts = np.ones(num_domains, dtype=np.int64)
    free = []
    for _ in range(num_clients - num_domains):
        domain = int(rng.choice(np.flatnonzero(counts < limit)))
        counts[domain] += 1
        free.append(domain)
    assigned = free + guaranteed
    return assigned if order == "official" else [assigned[position] for position in rng.permutation(num_clients)]


def _find_domains(suite: Suite, stated: Sequence[ClientArgs]) -> list[int]:
    """The index in ``suite`` of each stated client's domain."""
    places = {domain.name: index for index, domain in enumerate(suite.domains)}
    for client in stated:
        if client.domain not in places:
            raise ConfigError(f"data_args.clients: no domain `{client.domain}`{did_you_mean(client.domain, places)}")
    return [places[client.domain] for client in stated]


def client_data(suite: Suite, partition: Partition, batch_size: int, seed: int) -> list[ClientData]:
    """Return the training data of every client, in client order.

    The clients of a domain copy their samples, or else all refer to its training set, whichever takes less memory.

    Raises:
        DataError: A client holds fewer than 2 samples.
    """
    held_in_all = [0] * len(suite.domains)
    for index, held in zip(partition.domains, partition.indices, strict=True):
        held_in_all[index] += len(held)
    clients: list[ClientData] = []
    for client, (index, held) in enumerate(zip(partition.domains, partition.indices, strict=True)):
        domain = suite.domains[index]
        samples = domain.train.take(held) if held_in_all[index] <= len(domain.train) else domain.train.view(held)
        clients.append(ClientSamples(client, domain.name, samples, batch_size, seed))
    return clients


def size_of_share(share: float, available: int) -> int:
    """Return ``share`` of ``available`` samples, rounded down, with the share taken as the decimal that was written."""
    # as a binary fraction, 0.29 * 100 is just below 29
    return int(Fraction(str(share)) * available)


class _Pool:
    """A domain's training set without ``held_out``, while it is handed out.

    ``holders[i]`` counts the clients that have sample i; ``places[i]`` is its index in the training set.
    """

    def __init__(self, domain: Domain, held_out: Indices) -> None:
        self.places: Indices = np.setdiff1d(np.arange(len(domain.train)), held_out)
        labels = domain.train.labels
        self.labels: Indices | None = None if labels is None else labels.cpu().numpy()[self.places]
        self.holders: Indices = np.zeros(len(self.places), dtype=np.int64)

    def draw(self, count: int, rng: np.random.Generator) -> Indices:
        """Draw ``count`` distinct samples, those that nobody holds first."""
        free = np.flatnonzero(self.holders == 0)
        held = np.flatnonzero(self.holders)
        fresh = rng.choice(free, min(count, len(free)), replace=False)
        shared = rng.choice(held, count - len(fresh), replace=False)
        drawn: Indices = np.concatenate([fresh, shared])
        self.holders[drawn] += 1
        return drawn

    def swap_in_missing_classes(self, drawn: Indices, rng: np.random.Generator) -> Indices:
        """Trade one sample of ``drawn`` for each class that is missing in it.

        Samples are given away from random classes that have two or more.
        """
        labels = self.labels
        assert labels is not None, "a suite that wants every class at every client has classes"
        drawn = drawn.copy()
        for missing in np.setdiff1d(labels, labels[drawn]):
            donors = np.flatnonzero(np.bincount(labels[drawn]) >= 2)
            if not len(donors):
                break
            place = rng.choice(np.flatnonzero(labels[drawn] == rng.choice(donors)))
            candidates = np.flatnonzero(labels == missing)
            free = candidates[self.holders[candidates] == 0]
            incoming = rng.choice(free if len(free) else candidates)
            self.holders[drawn[place]] -= 1
            self.holders[incoming] += 1
            drawn[place] = incoming
        return drawn
