"""FDSE, the Federated Domain Shift Eraser (CVPR 2025): a personal corrector in every layer.

Layers are split into a large shared feature extractor (DFE) and a tiny skew eraser (DSE) of each client's own. Clients
train both, with a penalty that holds corrected features near statistics that all agreed on (L_Con). The server moves
the shared part, layer by layer, in the direction that suits all clients best and mixes the personal parts by their
similarity. Statistics behind the extractor stay with the client.

Where sources differ: the shortcut past the DSE and the missing activation in front of it are the public code's, which
its published settings belong to (``shortcut``, ``dse_act``); L_Con is the paper's Eq. 4-7; a group of parameters that
moves together is a layer, as in the text, not a tensor (``granularity``). Of BatchNorm's counters the largest that a
client sent stays. In residual networks, which the paper does not treat, all convolutions are split, shortcuts too.
A domain that nobody trained on starts from the mean of all clients' erasers; how long and how fast it then adapts is
not published (``adapt_epochs``, ``adapt_learning_rate``), and it adapts to its training images only. The statistics
behind its extractors are measured on these, adapted or not: the server has none. That leaves L_Con next to nothing to
do. Each extracted channel then has the mean and variance that the eraser gives it, and the eraser is the clients' mean,
as are the agreed statistics. In a trial L_Con fell from 0.43 to 0.001 by them; adaptation at rates from 0.01 to 100 did
not raise accuracy.

A client that has not trained yet starts from the initial eraser. Clients count alike, whatever
``dapper_args.aggregation_weights`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ProtocolError
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
from fedml_dapper.methods.contract.batchnorm import recalibrate
from fedml_dapper.methods.contract.optimizers import uncompiled
from fedml_dapper.methods.parts.averaging import check_like
from fedml_dapper.methods.parts.consistency import ConsistencyLoss, entering
from fedml_dapper.methods.parts.decomposition import (
    Activation,
    Roles,
    decompose,
    decomposed_layers,
    roles_of,
    undecomposed_layers,
)
from fedml_dapper.methods.parts.min_norm import consensus_step
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.pruning import Tensors
from fedml_dapper.pruning.tracing.graph import listed
from fedml_dapper.randomness.seeding import Stream, seeded_layers


class FDSEParams(MethodParams):
    """Settings of FDSE; defaults are for Office-Caltech10, ``beta`` the text's.

    The authors' files have ``beta`` 0.05 for Office-Caltech10, and ``lambda_`` 0.5 for PACS.
    """

    lambda_: float = Field(default=0.05, ge=0)
    """Strength of L_Con."""
    tau: float = Field(default=0.5, gt=0)
    """Temperature of the similarity between clients' erasers."""
    consensus: bool = True
    """Consensus on what is shared; False is the ablation of Table 3, A, which moves it by the mean of the updates."""
    similarity: bool = True
    """Mixing of erasers; False is the ablation of Table 3, B, read as: every client keeps the eraser it trained."""
    beta: float = Field(default=0.001, ge=0)
    """Growth of a layer's weight in L_Con with its depth (Eq. 7)."""
    keep: float = Field(default=0.9, ge=0, lt=1)
    """Share that L_Con's running statistics keep at every batch."""
    expansion: int = Field(default=2, ge=2)
    """G, channels made of each channel that the DFE extracts."""
    dse_act: Activation = "none"
    """Activation in front of the DSE; the paper's Eq. 3 has ``relu``."""
    shortcut: bool = True
    """Path of extracted channels past the DSE as well as into it; without it the DSE makes all G."""
    granularity: Literal["block", "per_tensor"] = "block"
    """Unit that the server treats as one vector: a layer's parameters of one role, or every tensor."""
    adapt_epochs: int = Field(default=5, ge=0)
    """Epochs over an unseen domain's images; 0 is the ablation "- align", which still measures statistics on them."""
    adapt_learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of that adaptation, plain SGD."""


class FDSE(Method[FDSEParams]):
    """Decomposed layers, consistency of statistics, consensus on what is shared, similarity for what is personal."""

    name = "fdse"
    Params = FDSEParams
    has_global_model = False
    sees_batches = True
    cost_note = "every client trains the full, decomposed model; the server holds all of a round's uploads at once."

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone with every layer in front of a BatchNorm split in two."""
        params = self.params
        with seeded_layers(self.problem.seed, Stream.METHOD):
            return decompose(backbone, self.problem.example, params.expansion, params.dse_act, params.shortcut)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not decomposed, though it might seem so."""
        whole = undecomposed_layers(self.problem.backbone, self.problem.example)
        what = (
            "fdse decomposes torch's linear layers and convolutions without groups, of a BatchNorm with statistics,"
            " where both are called once"
        )
        return (*super().notes, f"{listed(whole)} shared as a whole: {what}") if whole else super().notes

    @cached_property
    def roles(self) -> Roles:
        """Roles of all tensors at the server."""
        return roles_of(self.problem.backbone, self.params.granularity)

    @cached_property
    def personal(self) -> frozenset[str]:
        """Statistics behind the extractors."""
        return self.roles.local

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The shared part, and the client's own eraser."""
        sent = super().downlink(server, client_id)
        return replace(sent, weights={**sent.weights, **self._eraser(server, client_id)})

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE + lambda L_Con; in round 1, when nothing is agreed on yet, L_CE."""
        strength = self.params.lambda_
        if strength == 0 or downlink.round == 1:
            return self.problem.task_loss
        consistency = self._consistency(downlink.weights, client.device)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            with entering(_shared_norms(model)) as features:
                logits = model(batch.inputs)
            return self.problem.task.loss(logits, batch.targets) + strength * consistency(features)

        return loss

    def aggregation(self, server: ServerState) -> Aggregation:
        """Consensus on what is shared, layer by layer, and similarity for the erasers."""
        params = self.params
        return ConsensusAndSimilarity(
            server, self.roles, tau=params.tau if params.similarity else None, consensus=params.consensus
        )

    @property
    def beyond_sums(self) -> str:
        return "each client's update by itself, to solve for the step that conflicts with fewest"

    def adapted_model(self, server: ServerState, data: ClientData, device: torch.device) -> Backbone:
        """The shared part with the mean eraser, which is adapted to ``data``'s images by L_Con alone.

        Its statistics are measured on these images afterwards, also where nothing was adapted: nobody but the clients
        that trained has any.
        """
        model = self.global_model(server).to(device).eval().requires_grad_(False)
        layers = list(decomposed_layers(model).values())
        parameters = list[nn.Parameter]()
        for layer in layers:
            layer.bn_dse.train()
            parameters += [*layer.bn_dse.requires_grad_().parameters(), *layer.dse.requires_grad_().parameters()]
        optimizer = uncompiled(torch.optim.SGD)(parameters, self.params.adapt_learning_rate)
        consistency = self._consistency(server.weights, device)
        for epoch in range(1, self.params.adapt_epochs + 1):
            for images, _ in data.batches(server.round, epoch, device):
                with entering(_shared_norms(model)) as features:
                    model(images)
                optimizer.zero_grad()
                consistency(features).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
                optimizer.step()
        measured = recalibrate(model, data, device, [layer.bn_dse for layer in layers])
        put_tensors(model, measured)
        return model

    def _eraser(self, server: ServerState, client_id: int) -> Tensors:
        """A client's personal parameters; those of the initial model until it has trained."""
        initial = self.problem.backbone.state_dict()
        own = eraser_of(server, client_id)
        return own or {name: initial[name] for group in self.roles.similarity for name in group}

    def _consistency(self, weights: Tensors, device: torch.device) -> ConsistencyLoss:
        """L_Con towards the statistics in ``weights``."""
        agreed = [
            (weights[f"{name}.bn_dfe.running_mean"].to(device), weights[f"{name}.bn_dfe.running_var"].to(device))
            for name in decomposed_layers(self.problem.backbone)
        ]
        return ConsistencyLoss(agreed, self.params.keep, self.params.beta)


class ConsensusAndSimilarity:
    """Aggregation of decomposed networks by role, in float64 (Eq. 8-9).

    Shared parameters move by consensus, layer by layer; personal ones (erasers) are mixed by similarity and remembered
    per client, as ``client<id>`` in the server's memory, where those of absent clients stay as they are; shared
    statistics are averaged, and of counters the largest stays. The global model holds the mean eraser of all clients
    that have trained. Directions need all updates, so uploads are kept until the round closes.

    Without ``tau`` erasers are not mixed; without ``consensus`` the updates of what is shared are averaged.
    """

    def __init__(self, server: ServerState, roles: Roles, tau: float | None, *, consensus: bool = True) -> None:
        self._server = server
        self._roles = roles
        self._tau = tau
        self._step = consensus_step if consensus else _mean_step
        self._uploads: dict[int, Tensors] = {}

    def add(self, upload: Upload) -> None:
        before = self._server.weights
        check_like(upload.weights, {name: before[name] for name in before if name not in self._roles.local})
        for name, tensor in upload.weights.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ProtocolError(
                    f"client {upload.client_id} sent values that are not finite, in `{name}`: its training diverged,"
                    " or its data hold such values; look there, lower train_args.learning_rate, or set"
                    " train_args.max_grad_norm, e.g. 2"
                )
        self._uploads[upload.client_id] = upload.weights

    def close(self) -> None:
        if not self._uploads:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        shared = {**self._consensus(), **self._mean_statistics()}
        self._remember_erasers()
        self._server.weights = {**self._server.weights, **shared, **self._mean_eraser()}

    def _consensus(self) -> Tensors:
        before = self._server.weights
        after = dict[str, Tensor]()
        for names in self._roles.consensus:
            start = _joined(before, names)
            after |= _split(start + self._step(self._stacked(names) - start), names, before)
        return after

    def _mean_statistics(self) -> Tensors:
        before = self._server.weights
        after = dict[str, Tensor]()
        for name in self._roles.statistics:
            received = torch.stack([sent[name].to(before[name].device) for sent in self._uploads.values()])
            if received.is_floating_point():
                after[name] = received.double().mean(dim=0).to(before[name].dtype)
            elif received.dtype == torch.bool:
                after[name] = before[name] ^ (received ^ before[name]).any(dim=0)
            else:
                after[name] = received.amax(dim=0)
        return after

    def _remember_erasers(self) -> None:
        erasers: dict[int, dict[str, Tensor]] = {client_id: {} for client_id in self._uploads}
        for names in self._roles.similarity:
            trained = self._stacked(names)
            mixed = trained if self._tau is None else mix_by_similarity(trained, self._tau)
            for client_id, vector in zip(erasers, mixed, strict=True):
                erasers[client_id].update(_split(vector, names, self._server.weights))
        for client_id, eraser in erasers.items():
            self._server.memory.keep(f"client{client_id}", eraser)

    def _mean_eraser(self) -> Tensors:
        server = self._server
        mean = dict[str, Tensor]()
        erasers = [eraser for profile in server.profiles if (eraser := eraser_of(server, profile.client_id))]
        for names in self._roles.similarity:
            mean |= _split(self._stacked(names, erasers).mean(dim=0), names, server.weights)
        return mean

    def _stacked(self, names: Sequence[str], sets: Iterable[Tensors] | None = None) -> Tensor:
        """The tensors ``names`` as a row per upload, in ascending client id, or per one of ``sets``."""
        device = self._server.weights[names[0]].device
        rows = self._uploads.values() if sets is None else sets
        return torch.stack([_joined(row, names).to(device) for row in rows])


def mix_by_similarity(vectors: Tensor, tau: float) -> Tensor:
    """Vectors mixed by similarity (Eq. 9): A V, (N, P), where the rows of V are the clients' ``vectors`` themselves."""
    return similarity_weights(vectors, tau) @ vectors


def similarity_weights(vectors: Tensor, tau: float) -> Tensor:
    """Weights of the mixture: A = softmax over rows of q q^T / ``tau``, q_k = V_k / ||V_k||: (N, N), from (N, P).

    ``tau`` towards 0 leaves every vector as it is, towards infinity all become the plain mean.
    """
    directions = F.normalize(vectors, dim=1)
    return torch.softmax(directions @ directions.T / tau, dim=1)


def _shared_norms(model: nn.Module) -> list[nn.Module]:
    """The BatchNorms whose inputs L_Con measures."""
    return [layer.bn_dfe for layer in decomposed_layers(model).values()]


def _mean_step(updates: Tensor) -> Tensor:
    """The mean of ``updates``, a row per client."""
    return updates.mean(dim=0)


def eraser_of(server: ServerState, client_id: int) -> Tensors:
    """A client's personal parameters as last mixed; empty before it has trained."""
    return server.memory.recall(f"client{client_id}")


def _joined(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """The tensors ``names`` as one float64 vector."""
    return torch.cat([tensors[name].flatten().double() for name in names])


def _split(vector: Tensor, names: Sequence[str], like: Tensors) -> dict[str, Tensor]:
    """A vector as :func:`_joined` makes it, back in the shapes and dtypes of ``like``."""
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.view_as(like[name]).to(like[name].dtype) for name, part in zip(names, parts, strict=True)}
