"""Capability levels as files may give them: by pruning ratios, by budgets, or as a bare list of budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole_levels(levels: Any) -> Any:
    """Return ``dapper_args.levels``, of which a list is that of the budgets, with ratios and budgets if it has either.

    So levels laid over others replace both, or neither. Which ratio each budget comes to is known once the network is.
    """
    named = {"budgets": levels} if isinstance(levels, list | tuple) else levels
    if not isinstance(named, Mapping):
        return named
    budgets = named.get("budgets")
    if isinstance(budgets, list | tuple):
        return {"ratios": [0.0] * len(budgets), **named}
    return {"budgets": None, **named} if "ratios" in named else named


def with_whole_levels(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of an experiment file with :func:`whole_levels`, to be laid over those of another."""
    args = sections.get("dapper_args")
    if not isinstance(args, Mapping) or "levels" not in args:
        return dict(sections)
    return {**sections, "dapper_args": {**args, "levels": whole_levels(args["levels"])}}
