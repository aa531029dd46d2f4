"""Sub-models of a network's first stages, with their classifiers (DepthFL, ScaleFL).

The server averages every coordinate over the clients that hold it, and keeps what nobody holds. Budgets are shares of
the whole network with all its exits.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from math import floor
from typing import ClassVar, TypeVar

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import Method, MethodParams, Problem, ServerState
from fedml_dapper.methods.parts.early_exits import EarlyExits, Prediction, with_exits
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Footprint, PruningPlan, Recovery, Widths, footprint, slim_model
from fedml_dapper.pruning.footprint import count_macs, count_parameters


class EarlyExitParams(MethodParams):
    """Settings of all methods with early exits."""

    prediction: Prediction = "ensemble"
    """Answer of the global model and of every level's: the mean of all classifiers' logits, or the deepest's."""


E = TypeVar("E", bound=EarlyExitParams)


class EarlyExitMethod(Method[E]):
    """Sub-models of the first stages, averaged over their holders; subclasses say which a pruning ratio allows."""

    slims = True
    cuts_depth = True
    allows_personal_layers = True
    slim_downlink = True
    needs_labels = True
    recovery: Recovery = "holders"
    smallest: ClassVar[str]
    """Name of the smallest sub-model in errors."""

    def __init__(self, params: E, problem: Problem) -> None:
        if problem.pruning.ratio_of == "channels":
            raise ConfigError(
                f"dapper_args.pruning.ratio_of: `channels` says nothing of depth, which `{self.name}` scales; choose"
                " parameters or flops"
            )
        super().__init__(params, problem)

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone with a classifier behind every stage."""
        return with_exits(backbone, self.params.prediction, self.name, self.problem.seed)

    # Sub-models

    def sub_model(self, ratio: float) -> PruningPlan:
        """The part of the global model that a client of pruning ratio ``ratio`` holds.

        Raises ``ConfigError`` where even the smallest is too large.
        """
        raise NotImplementedError

    @property
    def network(self) -> EarlyExits:
        """The initial global model."""
        backbone = self.problem.backbone
        assert isinstance(backbone, EarlyExits)
        return backbone

    @cached_property
    def beyond(self) -> dict[int, frozenset[str]]:
        """Tensors that a network of so many stages lacks, by depth, from one stage to all."""
        return {depth: self.network.beyond(depth) for depth in range(1, 1 + len(self.network.stages))}

    def share(self, depth: int, widths: Widths | None = None) -> float:
        """Share of the whole network's parameters, or multiply-accumulates, in its first ``depth`` stages."""
        return self._cost(widths or {}, self.beyond[depth]) / self._cost({}, ())

    def _cost(self, widths: Widths, omitted: Collection[str]) -> int:
        count = count_parameters if self.problem.pruning.ratio_of == "parameters" else count_macs
        return count(self.problem.layout, widths, omitted)

    def out_of_reach(self, ratio: float, smallest: float) -> ConfigError:
        """The error for a ``ratio`` that leaves less than the ``smallest`` share there is."""
        level = 1 + self.problem.ratios.index(ratio) if ratio in self.problem.ratios else None
        return ConfigError(
            f"dapper_args.levels.ratios: ratio {ratio:g}{'' if level is None else f', of level {level},'} leaves"
            f" {100 * (1 - ratio):.1f} % of the {self.problem.pruning.ratio_of}; {self.smallest} has"
            f" {100 * smallest:.1f} %, a ratio of {floor(1000 * (1 - smallest)) / 1000:g}. Choose another ratio, width"
            " or ratio_of"
        )

    # The contract

    def footprint(self, ratio: float) -> Footprint:
        plan = self._sub_model(ratio)
        return footprint(
            self.problem.layout, plan.widths, skipped=plan.omitted, personal=self.personal, slim_downlink=True
        )

    def lacked(self, plan: PruningPlan) -> frozenset[str]:
        """Tensors beyond the stages that a client of ``plan`` holds."""
        sent = plan.omitted - self.personal
        return next(beyond for beyond in self.beyond.values() if beyond - self.personal == sent)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        return self._sub_model(server.profiles[client_id].ratio)

    def local_model(self, plan: PruningPlan) -> Backbone:
        lacked = self.lacked(plan)
        depth = next(depth for depth, beyond in self.beyond.items() if beyond == lacked)
        return slim_model(self.network.shallow(depth), self.problem.layout, plan)

    def _sub_model(self, ratio: float) -> PruningPlan:
        if ratio not in self._found:
            self._found[ratio] = self.sub_model(ratio)
        return self._found[ratio]

    @cached_property
    def _found(self) -> dict[float, PruningPlan]:
        return {}
