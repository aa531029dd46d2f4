"""Refusals of runs that a method cannot do: which task, model or setting it lacks, and what to choose instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.pruning.plan import gain_of

if TYPE_CHECKING:
    from fedml_dapper.methods.contract.base import Method


def check_problem(method: Method[Any], problem: Problem) -> None:
    """Check the problem before the method has built its model.

    Raises ``ConfigError`` where scope, task, model or optimizer lack what the method needs.
    """
    scope = problem.pruning.scope
    if method.slims and scope not in ("auto", *method.scopes):
        raise ConfigError(
            f"dapper_args.pruning.scope: `{scope}` does not go with method `{method.name}`;"
            f" choose {' or '.join(method.scopes)}"
        )
    optimizer = problem.training.client_optimizer
    if method.needs_sgd and optimizer != "sgd":
        raise ConfigError(
            f"train_args.client_optimizer: method `{method.name}` is derived for sgd, not {optimizer}; set it to sgd,"
            f" or {method.way_out}"
        )
    if problem.training.micro_batch_size is not None:
        _check_micro_batches(method, problem)
    if method.needs_representations and not problem.backbone.has_representations:
        raise ConfigError(
            f"dapper_args.method: `{method.name}` works on representations under a linear predictor, which"
            f" {problem.backbone.label} does not have; {method.way_out}"
        )
    if method.needs_labels and not problem.task.has_labels:
        raise ConfigError(
            f"dapper_args.method: `{method.name}` needs one class a sample, which task `{problem.task.name}` does not"
            f" have; {method.way_out}"
        )


def _check_micro_batches(method: Method[Any], problem: Problem) -> None:
    if method.sees_batches:
        raise ConfigError(
            f"train_args.micro_batch_size: method `{method.name}` looks at a batch as a whole; leave it out, and"
            " choose a smaller batch_size where memory is short"
        )
    if any(isinstance(layer, BatchNorm) for layer in problem.backbone.modules()):
        raise ConfigError(
            f"train_args.micro_batch_size: BatchNorm would normalise by pieces of a batch in {problem.backbone.label};"
            " leave it out, or set model_args.norm to group or standardised where the network has it"
        )


def check_personal_layers(method: Method[Any], names_its_own: bool) -> None:
    """Check ``dapper_args.at_home`` against a method that has built its model.

    ``names_its_own`` is whether the method says itself what clients keep. Raises ``ConfigError`` where the layers that
    the setting names cannot stay with the clients.
    """
    problem = method.problem
    chosen = f"dapper_args.at_home: `{problem.personal_layers}`"
    if not (method.allows_personal_layers or method.takes_at_home):
        why = "which says itself what clients keep" if names_its_own else "whose server needs all norms"
        raise ConfigError(
            f"{chosen} does not go with method `{method.name}`, {why}; set it to none, or choose another method"
        )
    if problem.pruning.scope == "official_mask":
        raise ConfigError(f"{chosen} does not go with dapper_args.pruning.scope `official_mask`; choose internal")
    producers = (producer for group in problem.layout.groups.values() for producer in group.producers)
    gains = {gain_of(producer) for producer in producers}
    if problem.pruning.importance != "filters" and gains & problem.personal_tensors:
        raise ConfigError(
            f"dapper_args.pruning.importance: `{problem.pruning.importance}` compares channels by gains, which with"
            f" dapper_args.at_home `{problem.personal_layers}` stay with the clients; set it to filters"
        )
