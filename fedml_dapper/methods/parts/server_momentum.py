"""Momentum at the server (FedAvgM; Hsu et al., 2019): each round goes on in the direction of those before it."""

from __future__ import annotations

from collections.abc import Collection

from fedml_dapper.methods.contract import Aggregation, HoldingAggregation, MergingAggregation, ServerState, Upload
from fedml_dapper.pruning import PartialSum

_VELOCITY = "velocity"


def with_momentum(
    aggregation: Aggregation, server: ServerState, beta: float, trainable: Collection[str]
) -> Aggregation:
    """``aggregation`` with momentum ``beta`` over tensors named ``trainable``; itself where that is 0."""
    return WithMomentum(aggregation, server, beta, trainable) if beta > 0 else aggregation


class WithMomentum:
    """An aggregation that gives W', after which v <- beta v + (W' - W) and W <- W + v.

    Both over trainable parameters; what else an aggregation gives stays. A coordinate that nobody held has W' = W, so
    that its velocity fades out. The server remembers v, one number per parameter.
    """

    def __init__(self, inner: Aggregation, server: ServerState, beta: float, trainable: Collection[str]) -> None:
        self.inner = inner
        self._server = server
        self._beta = beta
        self._trainable = trainable

    def add(self, upload: Upload) -> None:
        self.inner.add(upload)

    def hold(self) -> None:
        if isinstance(self.inner, HoldingAggregation):
            self.inner.hold()

    def fold(self) -> None:
        if isinstance(self.inner, HoldingAggregation):
            self.inner.fold()

    def merge(self, partial: PartialSum) -> None:
        assert isinstance(self.inner, MergingAggregation), "Method.takes_edges sees to that"
        self.inner.merge(partial)

    def close(self) -> None:
        before = self._server.weights
        self.inner.close()
        velocity = self._server.memory.recall(_VELOCITY)
        for name in self._trainable:
            change = self._server.weights[name] - before[name]
            velocity[name] = change if name not in velocity else self._beta * velocity[name] + change
        moved = {name: before[name] + velocity[name] for name in self._trainable}
        self._server.memory.keep(_VELOCITY, velocity)
        self._server.weights = {**self._server.weights, **moved}
