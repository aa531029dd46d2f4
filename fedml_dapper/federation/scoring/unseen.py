"""Test on a domain that is left out of training, with a newcomer that has unlabelled images of it (FDSE, Table 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedml_dapper.config import Settings, did_you_mean
from fedml_dapper.datasets import PARTITIONS, ClientData, Suite, TestData, divide
from fedml_dapper.errors import ConfigError


@dataclass(frozen=True)
class UnseenDomain:
    """Images of the newcomer, whose labels no method sees, and the test set of its domain."""

    data: ClientData
    test: TestData


def leave_out(suite: Suite, settings: Settings) -> tuple[Suite, UnseenDomain | None]:
    """Take ``dapper_args.evaluation.unseen_domain`` out of ``suite``; return the rest and that domain.

    Raises:
        ConfigError: The suite has no such domain, or no other.
    """
    name = settings.dapper_args.evaluation.unseen_domain
    if name is None:
        return suite, None
    names = [domain.name for domain in suite.domains]
    if name not in names:
        raise ConfigError(f"dapper_args.evaluation.unseen_domain: no domain `{name}`{did_you_mean(name, names)}")
    if len(names) == 1:
        raise ConfigError(f"dapper_args.evaluation.unseen_domain: `{name}` is the only domain; nobody could train")
    seen = replace(suite, domains=tuple(domain for domain in suite.domains if domain.name != name))
    alone = replace(suite, domains=tuple(domain for domain in suite.domains if domain.name == name))
    seed = settings.common_args.random_seed
    batch_size = settings.train_args.batch_size
    unset = {"clients": None}
    if settings.data_args.partition not in PARTITIONS:  # a user's own partition is made for the clients that train
        unset["partition"] = None
    data_args = settings.data_args.model_copy(update=unset)
    newcomer = divide(alone, data_args, 1, batch_size, seed)
    return seen, UnseenDomain(newcomer.clients[0], newcomer.domain_tests[0])
