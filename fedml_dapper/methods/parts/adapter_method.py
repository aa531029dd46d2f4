"""What methods for adapters of unequal ranks share: who holds which components, and adapters averaged apart."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Protocol, TypeVar

from torch import Tensor

from fedml_dapper.methods.contract import Aggregation, Method, MethodParams, Problem, ServerState, Upload
from fedml_dapper.methods.parts.adapter_products import Adapter, adapters_of
from fedml_dapper.pruning import (
    PruningPlan,
    RecoveringMean,
    Recovery,
    Tensors,
    check_fits,
    plan_by_importance,
    plan_window,
)

P = TypeVar("P", bound=MethodParams)


class AdapterMean(Protocol):
    """A mean of adapters over the clients of a round."""

    def add(self, upload: Upload, weight: float) -> None:
        """Add the adapters of an upload that has been checked; ``weight`` is what the client counts elsewhere."""

    def result(self) -> dict[str, Tensor]:
        """Return the new A and B of all adapters, by name."""


class AdapterMethod(Method[P]):
    """Base of methods whose clients train the first components of every adapter, and which average these apart.

    Where a level's base is smaller too, it keeps the channels of largest norm in the frozen base, the same in every
    round, so that weaker levels' networks are nested in stronger ones'. All that is no adapter, such as norms and the
    last layer, is averaged over its holders as FedAvg does.
    """

    needs_adapters = True
    slims = True
    slim_downlink = True
    allows_personal_layers = True
    recovery: Recovery = "holders"

    def __init__(self, params: P, problem: Problem) -> None:
        super().__init__(params, problem)
        self._plans: dict[float, PruningPlan] = {}
        """Plans by ratio, which many clients ask for."""

    @cached_property
    def adapters(self) -> tuple[Adapter, ...]:
        """The network's adapters."""
        return adapters_of(self.problem.layout)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The first components of every adapter, and the largest channels of the base, as many as the level keeps."""
        ratio = server.profiles[client_id].ratio
        if ratio not in self._plans:
            self._plans[ratio] = self.nested_plan(ratio, self.problem.backbone.state_dict())
        return self._plans[ratio]

    def nested_plan(self, ratio: float, weights: Tensors) -> PruningPlan:
        """The first components, and the channels of largest norm in the base among ``weights``, of a whole model."""
        layout = self.problem.layout
        groups = {adapter.group for adapter in self.adapters}
        widths = self.problem.widths(ratio)
        ranks = {name: width for name, width in widths.items() if name in groups}
        base = {name: width for name, width in widths.items() if name not in groups}
        largest = plan_by_importance(layout, weights, base)
        return PruningPlan({**largest.kept, **plan_window(layout, ranks).kept})

    def adapters_apart(self, server: ServerState, mean: AdapterMean, besides: Collection[str] = ()) -> Aggregation:
        """An aggregation of adapters by ``mean``, which sees to the tensors ``besides`` as well, and of everything else
        as FedAvg does."""
        apart = {*self.adapter_weights(server), *besides}
        return _AdaptersApart(server, self.problem, apart, mean)

    def adapter_weights(self, server: ServerState) -> dict[str, Tensor]:
        """The server's A and B of all adapters, by name."""
        return {name: server.weights[name] for adapter in self.adapters for name in (adapter.a, adapter.b)}


class _AdaptersApart:
    """Aggregation of two means, one of which is that of adapters."""

    def __init__(self, server: ServerState, problem: Problem, apart: Collection[str], mean: AdapterMean) -> None:
        self._server = server
        self._problem = problem
        self._adapters = mean
        self._sent = server.weights.keys() - problem.personal_tensors
        others = {name: tensor for name, tensor in server.weights.items() if name in self._sent - set(apart)}
        self._others = RecoveringMean(others, problem.layout, "holders")
        self._other_names = others.keys()

    def add(self, upload: Upload) -> None:
        check_fits(upload.weights, upload.plan, upload.unsliced, self._problem.layout, self._sent)
        weight = 1 if self._problem.uniform_weights else upload.num_samples
        others = {name: tensor for name, tensor in upload.weights.items() if name in self._other_names}
        self._others.take(others, upload.plan, weight)
        self._adapters.add(upload, weight)

    def close(self) -> None:
        self._server.weights = {**self._server.weights, **self._others.result(), **self._adapters.result()}
