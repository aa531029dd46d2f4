"""What a method needs of network, task and training, held against the table of what goes with what."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fedml_dapper.config import DapperArgs, Settings
from fedml_dapper.config.compatibility import Capabilities, check_capabilities
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.pruning.plan import gain_of

if TYPE_CHECKING:
    from fedml_dapper.methods.contract.base import Method


def check_problem(method: Method[Any], problem: Problem, names_its_own: bool) -> None:
    """Check the problem before the method has built its model.

    ``names_its_own`` is whether the method says itself what clients keep. Raises ``ConfigError`` where scope, task,
    model, optimizer or personal layers are not what the method needs.
    """
    network = problem.backbone
    check_capabilities(
        _settings_of(problem),
        Capabilities(
            method=method.name,
            network=network.label,
            task=problem.task.name,
            remedy=method.remedy,
            needs_sgd=method.needs_sgd,
            sees_batches=method.sees_batches,
            needs_representations=method.needs_representations,
            needs_labels=method.needs_labels,
            takes_scope=not method.slims or problem.pruning.scope in ("auto", *method.scopes),
            scopes=method.scopes,
            allows_personal_layers=method.allows_personal_layers or method.takes_at_home,
            names_its_own=names_its_own,
            has_batchnorm=any(isinstance(layer, BatchNorm) for layer in network.modules()),
            has_representations=network.has_representations,
            has_labels=problem.task.has_labels,
        ),
    )


def check_adapters(method: Method[Any]) -> None:
    """Check the network of a method that is about adapters, once it has built its model.

    Raises ``ConfigError`` where no rank components can be cut.
    """
    problem = method.problem
    has_adapters = any(group.partner is not None for group in problem.layout.groups.values())
    check_capabilities(
        _settings_of(problem),
        Capabilities(
            method=method.name, network=problem.backbone.label, needs_adapters=True, has_adapters=has_adapters
        ),
    )


def check_importance(method: Method[Any]) -> None:
    """Check ``dapper_args.pruning.importance`` against the layers that stay with clients.

    Raises ``ConfigError`` where a method that has built its model compares channels by gains that are among them.
    """
    problem = method.problem
    producers = (producer for group in problem.layout.groups.values() for producer in group.producers)
    gains = {gain_of(producer) for producer in producers}
    are_personal = bool(gains & problem.personal_tensors)
    check_capabilities(_settings_of(problem), Capabilities(method=method.name, compares_personal_gains=are_personal))


def check_untied(method: str, problem: Problem, apart: Collection[str]) -> None:
    """Check that no tensor has a name among those that ``method`` treats ``apart``, and another that is not.

    Raises ``ConfigError``: what clients keep under one name, the server would change under the other.
    """
    for name, spec in problem.layout.tensors.items():
        first = spec.alias_of
        if first is not None and (name in apart) != (first in apart):
            raise ConfigError(
                f"dapper_args.method: clients of `{method}` keep one of {name} and {first} to themselves, which in"
                f" {problem.backbone.label} are one tensor; untie them, as Hugging Face's tie_word_embeddings: false"
                " does, or choose another method"
            )


def _settings_of(problem: Problem) -> Settings:
    """The part of an experiment's settings that ``problem`` has."""
    args = DapperArgs.model_construct(pruning=problem.pruning, personal_layers=problem.personal_layers)
    return Settings.model_construct(train_args=problem.training, dapper_args=args)
