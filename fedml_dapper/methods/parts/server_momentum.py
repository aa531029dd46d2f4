"""Momentum at the server (FedAvgM; Hsu, Qi, Brown, 2019)."""

from __future__ import annotations

from collections.abc import Collection

from fedml_dapper.methods.contract import ServerState
from fedml_dapper.pruning import Tensors


def momentum_step(server: ServerState, mean: Tensors, beta: float, trainable: Collection[str]) -> None:
    """Write the new global model into ``server``: v <- beta v + (W' - W), then W <- W + v, where W' is the ``mean``.

    Both steps cover the tensors named ``trainable``; others become their mean. A coordinate that nobody held has
    W' = W, so that its velocity fades out. The server remembers v, one number per parameter; where ``beta`` is 0 it
    remembers nothing, and the new model is the mean.
    """
    before = server.weights
    server.weights = dict(mean)
    if beta == 0:
        return
    velocity = server.memory.recall("velocity")
    for name in trainable:
        change = mean[name] - before[name]
        velocity[name] = change if name not in velocity else beta * velocity[name] + change
        server.weights[name] = before[name] + velocity[name]
    server.memory.keep("velocity", velocity)
