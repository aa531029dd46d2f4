"""HetLoRA (Cho et al., EMNLP 2024): the first components to each client, zeros in the mean for what it lacks.

* **Truncation**: a client of rank r_k is sent the first r_k rows of A and columns of B.
* **Weighted mean**: what clients send is filled up with zeros to the whole rank, and averaged with weights
  ||B_k A_k|| / sum_j ||B_j A_j||, Frobenius norms of the products: "sparsity-weighted", as a product with few
  components of weight is short. Samples do not count in it.
* **Rank self-pruning**, ``gamma`` below 1: the last components of a client, those from floor(gamma r_k) on, its tail,
  are kept short by ``penalty`` times the sum over adapters of ||B_tail|| ||A_tail||, which joins the loss. If this sum
  is smaller after training than before, the client gives its tail up: it sends the rest alone, and is sent no more in
  later rounds.

Of the paper there were the abstract, the captions of its figures and others' code, not its whole text. What differs, or
is left open:

* The text writes of one matrix. Here one weight counts for all adapters of a client, by the norm of all its products
  together, and so does the decision to prune, which cuts every adapter.
* Self-pruning is off by default, since it takes from devices ranks that they can carry, and ``gamma`` and ``penalty``
  depend on task and rank. An adapter keeps at least one component.
* Where all products are zero there are no weights, and A and B stay as they are.
* Norms and the last layer are trained too, and averaged as FedAvg does, by samples. The paper's clients hold the whole
  base; here a level's base may be smaller, and zeros stand for components alone: a row or column of the base counts
  over the clients that have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    Loss,
    Memory,
    MethodParams,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.adapter_method import AdapterMethod
from fedml_dapper.methods.parts.adapter_products import Adapter, squared_length
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import ChannelLayout, PruningPlan, RecoveringMean, Tensors
from fedml_dapper.pruning.layout import without


class HetLoRAParams(MethodParams):
    """Settings of HetLoRA's self-pruning."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Share of its components that a client keeps when it prunes itself; 1 for never."""
    penalty: float = Field(default=0.0, ge=0)
    """Weight in the loss of the length of what is beyond that share."""


class HetLoRA(AdapterMethod[HetLoRAParams]):
    """First components, zero padding, and a mean weighted by the norms of products."""

    name = "hetlora"
    Params = HetLoRAParams
    cost_note = "with `gamma` below 1 clients give components up, and footprints are those before they do."

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The first components of every adapter, as many as the level keeps and the client has not given up."""
        plan = super().plan(server, client_id)
        for _ in range(_prunings(server).get(str(client_id), 0)):
            plan = self._without_tail(plan)
        return plan

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The task's loss, and with self-pruning ``penalty`` times the length of the tail."""
        del client, downlink
        if self.params.gamma == 1 or self.params.penalty == 0:
            return self.problem.task_loss
        gamma = self.params.gamma
        penalty = self.params.penalty

        def loss(model: Backbone, batch: Batch) -> Tensor:
            length = tail_length(dict(model.named_parameters()), self.adapters, gamma)
            return self.problem.task_loss(model, batch) + penalty * length

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs from the first components, of which the client may then give up the last."""
        upload = super().local_update(client, downlink)
        gamma = self.params.gamma
        if gamma == 1:
            return upload
        before, after = (tail_length(weights, self.adapters, gamma) for weights in (downlink.weights, upload.weights))
        return self._pruned(upload) if after < before.to(after) else upload

    def aggregation(self, server: ServerState) -> Aggregation:
        """Adapters filled up with zeros and averaged by the norms of their products; everything else as FedAvg."""
        mean = _PaddedMean(self.adapter_weights(server), self.problem.layout, self.adapters)
        return _CountPrunings(self.adapters_apart(server, mean), server, self)

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        """An upload holds what its client was sent, or with self-pruning that without its tail."""
        if self.params.gamma == 1 or upload.unsliced or not self.has_pruned(server, upload):
            super().check_plan(server, upload)

    def has_pruned(self, server: ServerState, upload: Upload) -> bool:
        """Whether an upload lacks the tail of what its client was sent, and nothing else."""
        sent = self.sendable(self.plan(server, upload.client_id))
        return not upload.plan.equals(sent) and upload.plan.equals(self._without_tail(sent))

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The level's part of the global model, whatever single clients have given up."""
        memory = Memory(server.memory.tensors, {**server.memory.values, "prunings": {}})
        return super().level_model(replace(server, memory=memory), level)

    @property
    def beyond_sums(self) -> str:
        learnt = "the length of each client's products B A, by which it counts"
        return learnt if self.params.gamma == 1 else f"{learnt}, and the components that each client keeps"

    def _without_tail(self, plan: PruningPlan) -> PruningPlan:
        kept = dict(plan.kept)
        for adapter in self.adapters:
            whole = torch.arange(self.problem.layout.groups[adapter.group].channels)
            components = kept.get(adapter.group, whole)
            kept[adapter.group] = components[: _tail(len(components), self.params.gamma)]
        return replace(plan, kept=kept)

    def _pruned(self, upload: Upload) -> Upload:
        weights = dict(upload.weights)
        for adapter in self.adapters:
            start = _tail(len(weights[adapter.a]), self.params.gamma)
            weights[adapter.a] = weights[adapter.a][:start].contiguous()
            weights[adapter.b] = weights[adapter.b][:, :start].contiguous()
        return replace(upload, plan=self._without_tail(upload.plan), weights=weights)


def _tail(rank: int, gamma: float) -> int:
    """Number of the first component of the tail of ``rank`` components; at least one component is before it."""
    return max(1, math.floor(gamma * rank))


def tail_length(weights: Tensors, adapters: Sequence[Adapter], gamma: float) -> Tensor:
    """Return the sum over adapters of ||B_tail|| ||A_tail||, shape ()."""
    lengths = []
    for adapter in adapters:
        start = _tail(len(weights[adapter.a]), gamma)
        tails = (weights[adapter.b][:, start:], weights[adapter.a][start:])
        b, a = (torch.linalg.vector_norm(each) for each in tails)
        lengths.append(b * a)
    return torch.stack(lengths).sum()


def _prunings(server: ServerState) -> dict[str, int]:
    """How often each client has given up a tail, by its id as text."""
    return cast(dict[str, int], server.memory.values.get("prunings", {}))


class _PaddedMean:
    """Mean of A and B, filled up with zeros to the whole rank, weighted by the norms of clients' products."""

    def __init__(self, before: Tensors, layout: ChannelLayout, adapters: Sequence[Adapter]) -> None:
        self._before = before
        self._adapters = adapters
        self._mean = RecoveringMean(before, without(layout, [adapter.group for adapter in adapters]), "holders")
        self._total = 0.0

    def add(self, upload: Upload, weight: float) -> None:
        del weight
        sent = upload.weights
        length = math.sqrt(sum(squared_length(sent[adapter.a], sent[adapter.b]) for adapter in self._adapters))
        padded = dict[str, Tensor]()
        for adapter in self._adapters:
            for name, axis in ((adapter.a, 0), (adapter.b, 1)):
                padded[name] = _filled_up(sent[name], axis, self._before[name].shape[axis])
        self._mean.take(padded, upload.plan, length)
        self._total += length

    def result(self) -> dict[str, Tensor]:
        return dict(self._before) if self._total == 0 else self._mean.result()


def _filled_up(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Return ``tensor`` with zeros behind it along ``axis``, so that it has ``size`` entries there."""
    shape = list(tensor.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)


class _CountPrunings:
    """Aggregation that remembers who gave up a tail, beside another one."""

    def __init__(self, whole: Aggregation, server: ServerState, method: HetLoRA) -> None:
        self._whole = whole
        self._server = server
        self._method = method
        self._pruned: list[str] = []

    def add(self, upload: Upload) -> None:
        self._whole.add(upload)
        if self._method.has_pruned(self._server, upload):
            self._pruned.append(str(upload.client_id))

    def close(self) -> None:
        self._whole.close()
        if self._pruned:
            before = _prunings(self._server)
            self._server.memory.values["prunings"] = {
                **before,
                **{client: before.get(client, 0) + 1 for client in self._pruned},
            }
