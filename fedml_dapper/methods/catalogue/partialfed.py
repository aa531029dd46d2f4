"""PartialFed (Sun et al., NeurIPS 2021): clients load only part of the global model.

At the start of a round a client loads some layers from the global model and keeps the others as its last local model
has them; it trains and uploads all. The server averages as in FedAvg. Layers here are modules with tensors, buffers
included, so a convolution and its BatchNorm are two.

Under ``fix`` the kinds of layers to keep are given. ``adaptive`` learns for every client and layer l which to load and
is a reconstruction: before training, one pass over the client's images with parameters a_l W_l + (1 - a_l) w_l, where
W is the global and w the last local model, a_l ~ GumbelSoftmax(pi_l, T), updates nothing but the logits pi; then what
their argmax says is loaded, and all weights are trained. The reconstruction's text takes the first part of the local
epochs for that; a pass apart leaves weights the same batches as under every other method. A client that holds no last
model loads everything.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Loss,
    Method,
    MethodParams,
    Pass,
    Phase,
    Problem,
    Upload,
)
from fedml_dapper.methods.contract.requirements import check_untied
from fedml_dapper.methods.parts.layers import Layer, modules_of
from fedml_dapper.methods.parts.per_step import PerStep
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.models.substitution import run_with
from fedml_dapper.pruning import DENSE, Tensors
from fedml_dapper.randomness.seeding import Stream, torch_generator

Kind = Literal["convolution", "batchnorm", "hidden_linear", "classifier"]

_COLDEST = 0.1
"""Lowest temperature; below it logits have no gradient to learn from."""


class PartialFedParams(MethodParams):
    """Settings of PartialFed."""

    strategy: Literal["fix", "adaptive"] = "fix"
    """Choice of the layers to keep: given kinds, or what every client learns."""
    local: tuple[Kind, ...] = ("batchnorm", "classifier")
    """Kinds of layers to keep under ``fix``: all four train every client alone, none is FedAvg."""
    temperature: float = Field(default=5.0, gt=0)
    """Temperature of the Gumbel-softmax in round 1, under ``adaptive``."""
    temperature_decay: float = Field(default=0.965, gt=0, le=1)
    """Factor of the temperature per round, that is per pass; it falls to 0.1 and no further."""


class PartialFed(Method[PartialFedParams]):
    """FedAvg into models of which clients load a part."""

    name = "partialfed"
    Params = PartialFedParams
    has_global_model = False
    cost_note = (
        "every client trains, receives and sends the full model and keeps layers of its last one between rounds;"
        " `adaptive` runs through its images once more in every round."
    )

    def __init__(self, params: PartialFedParams, problem: Problem) -> None:
        super().__init__(params, problem)
        if params.strategy == "fix" and params.local and not self.candidates:
            raise ConfigError(
                f"dapper_args.params.partialfed.local: {problem.backbone.label} has no {' and no '.join(params.local)},"
                " so that clients would keep nothing; name other kinds of layers, or none, which is fedavg"
            )
        by_layer = [layer.tensors for layer in self.candidates]
        together = [tuple(chain.from_iterable(by_layer))]
        for apart in by_layer if params.strategy == "adaptive" else together:
            check_untied(self.name, problem, apart)

    @cached_property
    def candidates(self) -> list[Layer]:
        """The layers that a client may keep: those of the given kinds, or all."""
        model = self.problem.backbone
        params = self.params
        layers = modules_of(model)
        if params.strategy == "adaptive":
            return layers
        return [layer for layer in layers if kind_of(model, layer.name) in params.local]

    def load(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The global model, but for the layers that the client keeps."""
        model = super().load(client, downlink)
        put_tensors(model, self.kept(client))
        return model

    def kept(self, client: ClientContext) -> Tensors:
        """Tensors that ``client`` keeps of its last model; none where it has no such model."""
        last = client.memory.recall("last_model")
        layers = self.candidates
        if self.params.strategy == "adaptive":
            keeps = self._logits(client).argmax(dim=1)
            layers = [layer for layer, keep in zip(layers, keeps, strict=True) if keep]
        return {name: last[name] for layer in layers for name in layer.tensors if name in last}

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs; before them, where layers are chosen, one in which nothing but the choice learns."""
        choosing = (Phase(1, (Pass(DENSE),)),) if self.params.strategy == "adaptive" else ()
        return (*choosing, *super().local_phases(profile))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        if self.params.strategy == "adaptive" and client.memory.recall("last_model"):
            client.memory.keep("strategy", {"logits": self.learn_strategy(client, downlink)})
        upload = super().local_update(client, downlink)
        sent = upload.weights
        last = {name: sent[name] for layer in self.candidates for name in layer.tensors if name in sent}
        client.memory.keep("last_model", last)
        return upload

    def learn_strategy(self, client: ClientContext, downlink: Downlink) -> Tensor:
        """The client's logits after one pass over its images: shape (layers, 2), columns load and keep."""
        model = super().load(client, downlink)
        last = {name: tensor.to(client.device) for name, tensor in client.memory.recall("last_model").items()}
        logits = nn.Parameter(self._logits(client).to(client.device, copy=True))  # learnt in place
        unreported = replace(client, on_step=lambda done, total: None)  # these are not steps of the weights
        training = LocalTraining(unreported, downlink.round, self.problem.training, epochs=1)
        generator = torch_generator(self.problem.seed, Stream.METHOD, client.profile.client_id, downlink.round)
        noise = PerStep(gumbel_noise(logits.shape, generator) for _ in count())
        loss = self._strategy_loss(logits, model, last, noise, downlink.round)
        training.epoch(model, training.optimizer(model, parameters=[logits]), loss, noise.advance)
        return logits.detach()

    def _strategy_loss(
        self, logits: Tensor, received: Backbone, last: Tensors, noise: PerStep[Tensor], round_: int
    ) -> Loss:
        params = self.params
        temperature = max(_COLDEST, params.temperature * params.temperature_decay ** (round_ - 1))
        weights = {name: parameter.detach() for name, parameter in received.named_parameters()}

        def loss(model: Backbone, batch: Batch) -> Tensor:
            shares = gumbel_softmax(logits, temperature, noise.now)[:, 0]
            mixed = {
                name: share * weights[name] + (1 - share) * last[name]
                for layer, share in zip(self.candidates, shares, strict=True)
                for name in layer.tensors
                if name in weights and name in last
            }
            return self.problem.task.loss(run_with(model, mixed, (batch.inputs,)), batch.targets)

        return loss

    def _logits(self, client: ClientContext) -> Tensor:
        even = torch.zeros(len(self.candidates), 2)
        return client.memory.recall("strategy").get("logits", even)


def kind_of(model: Backbone, layer: str) -> Kind:
    """Kind of the module named ``layer``."""
    module = model.get_submodule(layer)
    if module is model.predictor:
        return "classifier"
    if isinstance(module, BatchNorm):
        return "batchnorm"
    return "convolution" if isinstance(module, _ConvNd) else "hidden_linear"


def gumbel_noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw of the standard Gumbel distribution, on the CPU."""
    return -torch.empty(shape).exponential_(generator=generator).log()


def gumbel_softmax(logits: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Draw of softmax((pi + g) / T) over the last axis, given the ``noise`` g of :func:`gumbel_noise`."""
    return F.softmax((logits + noise.to(logits.device)) / temperature, dim=-1)
