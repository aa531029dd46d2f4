"""What a method needs of network, task and training: its rows in the table of what goes with what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedml_dapper.config import DapperArgs, Settings
from fedml_dapper.config.compatibility import Capabilities, check_capabilities
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.pruning.plan import gain_of

if TYPE_CHECKING:
    from fedml_dapper.methods.contract.base import Method
    from fedml_dapper.methods.contract.problem import Problem


def check_needs(method: Method[Any], problem: Problem, keeps_something_itself: bool) -> None:
    """Raises ``ConfigError`` where ``problem`` lacks what ``method``, which is not built yet, needs."""
    network = problem.backbone
    scope = problem.pruning.scope
    check_capabilities(
        _settings_of(problem),
        Capabilities(
            method=method.name,
            network=network.label,
            task=problem.task.name,
            way_out=method.way_out,
            needs_sgd=method.needs_sgd,
            sees_batches=method.sees_batches,
            needs_representations=method.needs_representations,
            needs_labels=method.needs_labels,
            takes_scope=not method.slims or scope in ("auto", *method.scopes),
            scopes=method.scopes,
            takes_at_home=method.takes_at_home,
            keeps_something_itself=keeps_something_itself,
            has_batchnorm=any(isinstance(layer, BatchNorm) for layer in network.modules()),
            has_representations=network.has_representations,
            has_labels=problem.task.has_labels,
        ),
    )


def check_gains(name: str, problem: Problem) -> None:
    """Raises ``ConfigError`` where the method of that name compares channels by gains that stay with clients."""
    groups = problem.layout.groups.values()
    gains = {gain_of(producer) for group in groups for producer in group.producers}
    kept = bool(gains & problem.kept_at_home)
    check_capabilities(_settings_of(problem), Capabilities(method=name, compares_gains_at_home=kept))


def _settings_of(problem: Problem) -> Settings:
    """What ``problem`` says, where settings say it."""
    args = DapperArgs.model_construct(pruning=problem.pruning, at_home=problem.at_home)
    return Settings.model_construct(train_args=problem.training, dapper_args=args)
