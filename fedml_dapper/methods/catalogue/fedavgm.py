"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

The server's learning rate is 1, and its momentum plain, not Nesterov's. Momentum covers trainable parameters;
BatchNorm's statistics are averaged as in FedAvg.
"""

from __future__ import annotations

from pydantic import Field

from fedml_dapper.methods.contract import Method, MethodParams, ServerState
from fedml_dapper.methods.parts.server_momentum import momentum_step
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
        """Momentum: v <- beta v + (W' - W), then W <- W + v, over trainable parameters, where W' is the mean."""
        momentum_step(server, mean, self.params.server_momentum, self.problem.layout.trainable)
