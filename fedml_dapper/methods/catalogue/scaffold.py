"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates against client drift.

The server keeps c, an estimate of the gradient of the whole federation, and every client c_i, one of its own. Each
local step follows grad + c - c_i, the client's gradient moved to where the federation's is thought to point. c_i is
renewed from the path that was walked (option II). c and c_i cover trainable parameters; BatchNorm's statistics are
averaged as in FedAvg.

Option II divides the path by K eta, which is right for plain SGD only. ``momentum`` is therefore 0, whatever
``train_args.momentum`` says; a learning rate chosen for momentum 0.9 is then up to ten times too small. With another
value the divisor is what momentum makes of it. Weight decay stays as set and counts as part of the local objective, so
that c and c_i contain it. ``train_args.max_grad_norm`` clips corrected gradients; where it bites, c_i is an average of
clipped steps. Clients are averaged uniformly, as the derivation wants, whatever ``dapper_args.aggregation_weights``
says. They send y_i rather than y_i - x: it is the same information, and the server's step of 1 is then FedAvg's mean to
the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod

import torch
from pydantic import Field
from torch import Tensor, nn

from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    Method,
    MethodParams,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.averaging import UniformMean, check_like
from fedml_dapper.pruning import Footprint, Tensors


class SCAFFOLDParams(MethodParams):
    """Settings of SCAFFOLD."""

    eta_g: float = Field(default=1.0, gt=0)
    """Step of the server: 1 moves it all the way to the clients' mean."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the local optimiser, instead of ``train_args.momentum``."""


class SCAFFOLD(Method[SCAFFOLDParams]):
    """Local SGD along gradients that are corrected by control variates."""

    name = "scaffold"
    Params = SCAFFOLDParams
    needs_sgd = True
    cost_note = (
        "besides the model, one control variate per parameter travels each way, and every client keeps one between"
        " rounds."
    )

    def control(self, server: ServerState) -> Tensors:
        """The server's control variate c, by parameter; zero at first."""
        zero = {name: torch.zeros_like(server.weights[name]) for name in self.problem.layout.trainable}
        return server.memory.recall("control") or zero

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The global model x and c."""
        return replace(super().downlink(server, client_id), extras=self.control(server))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of corrected steps from x to y_i; the change of c_i travels with y_i."""
        momentum = self.params.momentum
        model = self.load(client, downlink)
        y = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        x = {name: parameter.detach().clone() for name, parameter in y.items()}
        c = {name: tensor.to(client.device) for name, tensor in downlink.extras.items()}
        remembered = client.memory.recall("control")
        own = {name: remembered.get(name, torch.zeros_like(tensor)).to(client.device) for name, tensor in c.items()}

        training = self.train_epochs(
            client, downlink, model, self.objective(client, downlink),
            momentum=momentum, before_step=partial(correct, y, c, own),
        )  # fmt: skip

        walked = training.learning_rate * unit_steps(training.metrics().steps, momentum)
        renewed = {name: new_control(own[name], c[name], x[name], y[name].detach(), walked) for name in y}
        client.memory.keep("control", renewed)
        changes = {name: tensor - own[name] for name, tensor in renewed.items()}
        return self.upload(client, downlink, model, training, changes)

    def aggregation(self, server: ServerState) -> Aggregation:
        """The uniform means of the y_i and of the changes of the c_i, for :meth:`step`."""
        return UniformMean(server, self.control(server), self.step)

    def step(self, server: ServerState, mean: Tensors, changes: Tensors, received: int) -> None:
        """Steps of x and c: x + eta_g mean(y_i - x), and c + |S| / N mean(c_i+ - c_i), |S| = ``received`` of N
        clients."""
        c = self.control(server)
        share = received / len(server.profiles)
        stepped = {name: server_step(server.weights[name], mean[name], self.params.eta_g) for name in c}
        server.weights = {**mean, **stepped}
        server.memory.keep("control", {name: tensor + share * changes[name] for name, tensor in c.items()})

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        check_like(upload.extras, self.control(server))

    @property
    def beyond_sums(self) -> str:
        return "each client's control variates"

    def footprint(self, ratio: float) -> Footprint:
        cost = super().footprint(ratio)
        tensors = self.problem.layout.tensors
        variates = sum(prod(tensors[name].shape) for name in self.problem.layout.trainable) * torch.float32.itemsize
        return replace(cost, bytes_up=cost.bytes_up + variates, bytes_down=cost.bytes_down + variates)


@torch.no_grad()
def correct(parameters: Mapping[str, nn.Parameter], c: Tensors, own: Tensors) -> None:
    """Correct gradients in place: grad <- grad + c - c_i; ``own`` is c_i."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            parameter.grad += c[name] - own[name]


def unit_steps(steps: int, momentum: float) -> float:
    """Distance, in learning rates, of ``steps`` SGD steps along a constant gradient of 1: K without momentum."""
    return sum((1 - momentum**step) / (1 - momentum) for step in range(1, steps + 1))


def new_control(own: Tensor, c: Tensor, x: Tensor, y: Tensor, walked: float) -> Tensor:
    """Renewed control variate c_i+ = c_i - c + (x - y) / (K eta) (option II), from x received and y trained.

    ``own`` is c_i, ``walked`` K eta or what momentum makes of it.
    """
    return own - c + (x - y) / walked


def server_step(x: Tensor, mean: Tensor, eta_g: float) -> Tensor:
    """Step x + eta_g mean(y_i - x) of the server, written so that eta_g = 1 gives mean(y_i) to the bit."""
    return (1 - eta_g) * x + eta_g * mean
