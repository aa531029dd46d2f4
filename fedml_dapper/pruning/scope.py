"""Scope of pruning: which of a network's channels may be cut, as named in the settings or by what the ratios need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from fedml_dapper.config import PruningArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs
from fedml_dapper.pruning.budget import TOLERANCE, OutOfReachError, RatioOf, largest_ratio, solve_widths
from fedml_dapper.pruning.layout import ChannelLayout, Scope, Widths
from fedml_dapper.pruning.tracing import trace_layout

_LEFT_WHOLE: dict[Scope, str] = {
    "internal": "it leaves whole what is added to another layer's channels or read by the last layer",
    "grouped": "it leaves whole only what the network puts out and what cannot be followed",
}
_OTHER: dict[Scope, Scope] = {"internal": "grouped", "grouped": "internal"}


@dataclass(frozen=True)
class Scoped:
    """Layout of a network, and the scope in which it is cut."""

    layout: ChannelLayout
    scope: Scope
    why: str = ""
    """Why this scope was chosen, where the settings leave it to ``auto``."""

    @classmethod
    def of(cls, model: nn.Module, example: Inputs, pruning: PruningArgs, ratios: Iterable[float]) -> Scoped:
        """Trace a network in the scope that ``pruning`` names.

        ``auto`` is internal where that meets all ``ratios``, and grouped elsewhere.
        """
        if pruning.scope != "auto":
            return cls(trace_layout(model, example, pruning.scope), pruning.scope)
        internal = trace_layout(model, example, "internal")
        if all(_meets(internal, ratio, pruning) for ratio in ratios):
            return cls(internal, "internal", "it meets all ratios")
        why = f"internal {_reach(internal, pruning) or 'cuts none of its channels'}"
        return cls(trace_layout(model, example, "grouped"), "grouped", why)

    def widths(self, ratio: float, pruning: PruningArgs, setting: str, model: nn.Module, example: Inputs) -> Widths:
        """Return the channels that each group keeps at ``ratio``.

        ``setting`` names where the ratio comes from, for errors.

        Raises:
            ConfigError: The ratio is out of reach; the message says which layers stay whole, and what the other scope
                reaches.
        """
        try:
            return solve_widths(self.layout, ratio, size_of(pruning), pruning.round_to, setting)
        except OutOfReachError as error:
            other = _OTHER[self.scope]
            no_channel = "cuts no channel" if self.layout.groups else "cuts no channel either"
            reach = _reach(trace_layout(model, example, other), pruning) or no_channel
            raise ConfigError(
                f"{error}; the scope is {self.scope}: {_LEFT_WHOLE[self.scope]}; dapper_args.pruning.scope {other}"
                f" {reach}"
            ) from error


def size_of(pruning: PruningArgs) -> RatioOf:
    """Return the size that ratios are shares of; those of what training costs have been solved before.

    Raises:
        ConfigError: They have not, as a level's budget of rank and base is none that is solved for.
    """
    match pruning.ratio_of:
        case "parameters" | "flops" | "channels" as size:
            return size
        case cost:
            raise ConfigError(
                f"dapper_args.pruning.ratio_of: `{cost}` goes with dapper_args.levels.ratios; levels that have budgets"
                " take parameters, flops or channels"
            )


def _meets(layout: ChannelLayout, ratio: float, pruning: PruningArgs) -> bool:
    """Whether a scope with ``layout`` has models as small as ``ratio`` asks for, in whatever steps."""
    try:
        solve_widths(layout, ratio, size_of(pruning), pruning.round_to)
    except OutOfReachError:
        return False
    return pruning.round_to == 1 or ratio <= largest_ratio(layout, size_of(pruning), pruning.round_to) + TOLERANCE


def _reach(layout: ChannelLayout, pruning: PruningArgs) -> str:
    """Say the largest ratio that a scope with ``layout`` meets; empty where it cuts no channel."""
    if not layout.groups:
        return ""
    reach = largest_ratio(layout, size_of(pruning), pruning.round_to)
    return f"reaches a ratio of {reach:g}" if reach else "reaches no ratio of 0.001"
