"""Leave one domain out: nobody trains on it, and a newcomer with unlabelled images of it is tested (FDSE, Table 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedml_dapper.config import Settings, did_you_mean
from fedml_dapper.datasets import PARTITIONS, ClientData, Suite, TestData, divide
from fedml_dapper.errors import ConfigError


@dataclass(frozen=True)
class UnseenDomain:
    """The newcomer's images, whose labels no method sees, and its domain's test set."""

    data: ClientData
    test: TestData


def leave_out(suite: Suite, settings: Settings) -> tuple[Suite, UnseenDomain | None]:
    """``suite`` without ``dapper_args.evaluation.unseen_domain``, and that domain; raises ``ConfigError``."""
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
    of_trainers = {"clients": None}
    if settings.data_args.partition not in PARTITIONS:  # the user's own speaks of those who train as well
        of_trainers["partition"] = None
    drawn = settings.data_args.model_copy(update=of_trainers)
    newcomer = divide(alone, drawn, 1, batch_size, seed)
    return seen, UnseenDomain(newcomer.clients[0], newcomer.domain_tests[0])
