"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

The server's learning rate is 1, and its momentum plain, not Nesterov's. Momentum covers trainable parameters;
BatchNorm's statistics are averaged as in FedAvg.
"""

from __future__ import annotations

from pydantic import Field

from fedml_dapper.methods.contract import Method, MethodParams, ServerState
from fedml_dapper.pruning import Tensors


class FedAvgMParams(MethodParams):
    """Settings of FedAvgM."""

    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum beta; 0 is FedAvg."""


class FedAvgM(Method[FedAvgMParams]):
    """FedAvg whose average change is carried on from round to round."""

    name = "fedavgm"
    Params = FedAvgMParams
    cost_note = "clients are FedAvg's; the server keeps one number per parameter between rounds."

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """Momentum: v <- beta v + (W' - W), then W <- W + v, over trainable parameters, where W' is the mean.

        A coordinate that nobody held has W' = W, so that its velocity fades out.
        """
        beta = self.params.server_momentum
        before = server.weights
        server.weights = dict(mean)
        if beta == 0:
            return
        velocity = server.memory.recall("velocity")
        for name in self.problem.layout.trainable:
            change = mean[name] - before[name]
            velocity[name] = change if name not in velocity else beta * velocity[name] + change
            server.weights[name] = before[name] + velocity[name]
        server.memory.keep("velocity", velocity)
