"""FedDyn (Acar et al., ICLR 2021): dynamic regularisation.

Each client's objective gets a linear and a quadratic term such that, once everything has converged, the clients' optima
are one another's and the federation's. A client remembers g_i, the gradient of its task loss at the model it ended
with, whatever rounds it takes part in; the server remembers h, the drift that it takes off the mean. Both cover
trainable parameters; BatchNorm's statistics are averaged as in FedAvg.

Clients are averaged uniformly, as the derivation wants, whatever ``dapper_args.aggregation_weights`` says. Public code
clips gradients to norm 10, which is ``train_args.max_grad_norm: 10``.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    Loss,
    Method,
    MethodParams,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.averaging import UniformMean
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Tensors


class FedDynParams(MethodParams):
    """Settings of FedDyn."""

    alpha: float = Field(default=0.1, gt=0)
    """Strength of the regularisation; FedCMD's comparison has 0.01."""


class FedDyn(Method[FedDynParams]):
    """Local objectives that are bent round by round until they agree with the global one."""

    name = "feddyn"
    Params = FedDynParams
    cost_note = "messages are FedAvg's; every client and the server keep one number per parameter between rounds."

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE - <g_i, w> + (alpha / 2) ||w - W||^2 over trainable parameters, W as received."""
        alpha = self.params.alpha
        received = {name: tensor.to(client.device) for name, tensor in downlink.weights.items()}
        gradient = {name: tensor.to(client.device) for name, tensor in client.memory.recall("gradient").items()}

        def loss(model: Backbone, batch: Batch) -> Tensor:
            task_loss = self.problem.task_loss(model, batch)
            parameters = {name: parameter for name, parameter in model.named_parameters() if name in received}
            return task_loss + dynamic(parameters, gradient, received, alpha)

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs on the objective, then g_i is renewed."""
        upload = super().local_update(client, downlink)
        remembered = client.memory.recall("gradient")
        renewed = {}
        for name in self.problem.layout.trainable:
            trained = upload.weights[name]
            received = downlink.weights[name].to(client.device)
            before = remembered.get(name, torch.zeros_like(trained)).to(client.device)
            renewed[name] = new_gradient(before, trained, received, self.params.alpha)
        client.memory.keep("gradient", renewed)
        return upload

    def aggregation(self, server: ServerState) -> Aggregation:
        """The uniform mean of the models, for :meth:`step`."""
        return UniformMean(server, {}, self.step)

    def step(self, server: ServerState, mean: Tensors, extras: Tensors, received: int) -> None:
        """The new global model, mean(w_i) - h / alpha, with h renewed; h is zero before round 1."""
        del extras
        alpha = self.params.alpha
        share = received / len(server.profiles)
        zero = {name: torch.zeros_like(server.weights[name]) for name in self.problem.layout.trainable}
        before = server.memory.recall("h") or zero
        h = {name: new_drift(old, mean[name], server.weights[name], alpha, share) for name, old in before.items()}
        server.weights = {**mean, **{name: mean[name] - drift / alpha for name, drift in h.items()}}
        server.memory.keep("h", h)

    @property
    def beyond_sums(self) -> str:
        return "sums of changes that it remembers apart from the model (h)"


def dynamic(parameters: Tensors, gradient: Tensors, received: Tensors, alpha: float) -> Tensor:
    """Dynamic regulariser, a scalar: -<g_i, w> + (alpha / 2) ||w - W||^2; ``gradient`` is g_i, empty at first."""
    # in the model's order: memory that travelled has its names in another one, and float sums depend on it
    linear = sum((gradient[name] * parameter).sum() for name, parameter in parameters.items() if name in gradient)
    squares = [(parameter - received[name]).square().sum() for name, parameter in parameters.items()]
    return alpha / 2 * torch.stack(squares).sum() - linear


def new_gradient(gradient: Tensor, trained: Tensor, received: Tensor, alpha: float) -> Tensor:
    """Renewed gradient of a client: g_i - alpha (w_i - W)."""
    return gradient - alpha * (trained - received)


def new_drift(h: Tensor, mean: Tensor, before: Tensor, alpha: float, share: float) -> Tensor:
    """Renewed drift: h - (alpha / N) sum over S of (w_i - W), from the mean of the w_i; ``share`` is |S| / N."""
    return h - alpha * share * (mean - before)
