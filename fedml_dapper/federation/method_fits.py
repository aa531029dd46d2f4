"""Check that a method can do what the settings of an experiment ask for."""

from __future__ import annotations

from typing import Any

from fedml_dapper.config import Settings
from fedml_dapper.config.compatibility import Capabilities, check_capabilities
from fedml_dapper.federation.privacy.account_of_run import check_steps
from fedml_dapper.methods import Method, check_untied, running_statistics


def check_method(settings: Settings, method: Method[Any]) -> None:
    """Raise :class:`ConfigError`, which says what to choose, where ``method`` cannot do what ``settings`` ask for."""
    is_private = settings.dapper_args.privacy is not None
    check_capabilities(
        settings,
        Capabilities(
            method=method.name,
            network=method.problem.backbone.label,
            cuts_depth=method.cuts_depth,
            takes_robust_means=method.takes_robust_means,
            tests_on_training_data=method.tests_on_training_data,
            beyond_sums=method.beyond_sums,
            takes_late_uploads=method.takes_late_uploads,
            takes_edges=method.takes_edges,
            serves_newcomers=method.serves_newcomers,
            fits_all_levels=_fits_all_levels(method),
            sends_statistics=_sends_statistics(method) if is_private else None,
            whole_numbers=_whole_numbers(method) if is_private else None,
        ),
    )
    check_steps(method.problem, method.personal)
    check_untied(method.name, method.problem, method.personal)


def _fits_all_levels(method: Method[Any]) -> bool:
    levels = range(1, 1 + len(method.problem.ratios))
    return all(method.has_level_model(level) for level in levels if method.takes_part(level))


def _sends_statistics(method: Method[Any]) -> bool:
    return bool(running_statistics(method.problem.backbone, copy=False).keys() - method.personal)


def _whole_numbers(method: Method[Any]) -> tuple[str, ...]:
    """Integer tensors of an upload other than BatchNorm's counters, which nothing reads."""
    layout = method.problem.layout
    whole = sorted(name for name in layout.travelling if not layout.tensors[name].dtype.is_floating_point)
    return tuple(name for name in whole if name not in method.personal and not name.endswith("num_batches_tracked"))
