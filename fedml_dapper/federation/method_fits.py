"""Check that a method can do what the settings of an experiment ask for."""

from __future__ import annotations

from typing import Any

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.privacy import check_privacy
from fedml_dapper.methods import Method


def check_method(settings: Settings, method: Method[Any]) -> None:
    """Raise :class:`ConfigError`, which says what to choose, where ``method`` cannot do what ``settings`` ask for."""
    aggregation = settings.dapper_args.defence.aggregation
    if aggregation != "mean" and not method.takes_robust_means:
        raise ConfigError(
            f"dapper_args.defence.aggregation: `{aggregation}` stands in for the mean of methods that recover and"
            f" average only, and `{method.name}` aggregates in its own way; set it to mean, or choose another method"
        )
    if method.tests_on_training_data and not settings.common_args.is_simulation:
        raise ConfigError(
            f"dapper_args.params.{method.name}: these settings measure something on all clients' training data, which"
            " only a simulation has in one place; choose others (docs/methods.md)"
        )
    check_privacy(method)
    _check_buffer(settings, method)
    _check_edges(settings, method)
    level_args = settings.dapper_args.levels
    known = range(1, 1 + len(level_args.ratios))
    if level_args.strict and any(method.takes_part(level) and not method.has_level_model(level) for level in known):
        raise ConfigError(
            f"dapper_args.levels.strict: method `{method.name}` trains the full model on every client, whatever its"
            " capability level; choose a method that slims, or leave `strict` out for a comparison that ignores limits"
        )
    if settings.dapper_args.evaluation.unseen_domain is not None and not method.serves_newcomers:
        raise ConfigError(
            f"dapper_args.evaluation.unseen_domain: method `{method.name}` has no model for a client that never trained"
        )


def _check_buffer(settings: Settings, method: Method[Any]) -> None:
    """Raise :class:`ConfigError` where ``buffer_size`` is set and rounds cannot close before all clients are done."""
    args = settings.dapper_args
    wanted = settings.train_args.client_num_per_round
    if args.buffer_size is None:
        return
    if settings.common_args.is_simulation:
        raise ConfigError(
            "dapper_args.buffer_size: a simulation has no real clock; choose dapper_args.fleet.clock, late: kept and"
            " over_selection (docs/fleet.md)"
        )
    if not args.min_clients_per_round <= args.buffer_size < wanted:
        raise ConfigError(
            f"dapper_args.buffer_size: is {args.buffer_size}; choose at least dapper_args.min_clients_per_round"
            f" ({args.min_clients_per_round}) and less than train_args.client_num_per_round ({wanted}), who are at work"
        )
    if not method.takes_late_uploads:
        raise ConfigError(
            f"dapper_args.buffer_size: `{method.name}` uses more of an upload than a mean of its weights, which is only"
            " true in the upload's own round; leave it out, or choose another method"
        )


def _check_edges(settings: Settings, method: Method[Any]) -> None:
    """Raise :class:`ConfigError` where there are edges and the server needs more than a sum of uploads."""
    if settings.comm_args.edges and not method.takes_edges:
        raise ConfigError(
            f"comm_args.dapper_grpc.edges: with these settings `{method.name}`, or dapper_args.defence, learns more of"
            " uploads than edges tell, the mean of their weights; leave edges out, or choose others (docs/runners.md)"
        )
