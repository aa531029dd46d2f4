"""FLoRA (Wang et al., NeurIPS 2024): what clients learnt goes into the base in every round, and adapters start anew.

The server stacks the clients' matrices, [B_1 ... B_K] and [p_1 A_1; ...; p_K A_K], whose product is the mean of their
products, whatever their ranks. Each client adds that to its base. No rank loses anything, as nothing is taken apart,
and a device of any rank runs all that was learnt.

What differs from the text, or what it leaves open:

* The stack is never built: the server sums the products p_k B_k A_k, and adds them, times the layers' alpha / r, to its
  own matrices, W <- W + (alpha / r) sum_k p_k B_k A_k. A client is sent these in place of the stack, so that one that
  missed rounds needs nothing else. They are the one part of the base that travels, and only down. For a layer of
  in x out this costs as much as a stack of in out / (in + out) components, however many clients there are; the
  original's is as high as all ranks of a round together.
* The new A of a round is drawn once, at the server, and B is zero; clients start from the first rows of the same A.
* Norms and the last layer are trained too, and averaged as FedAvg does. The paper's clients hold the whole base; here a
  level's base may be smaller, and each entry of W moves by the mean over the clients whose base has its row and column.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    MethodParams,
    Problem,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.adapter_method import AdapterMethod
from fedml_dapper.methods.parts.adapter_products import Adapter, ProductMean
from fedml_dapper.models import Backbone
from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.models.frozen import MovedAtServer
from fedml_dapper.pruning import Footprint, PruningPlan, Tensors
from fedml_dapper.pruning.footprint import count_bytes
from fedml_dapper.randomness.seeding import Stream, torch_generator


class FLoRAParams(MethodParams):
    """Settings of FLoRA, of which there are none; ranks are those of ``dapper_args.levels``."""


class FLoRA(AdapterMethod[FLoRAParams]):
    """The mean of products goes into the base, and every round has adapters of its own."""

    name = "flora"
    Params = FLoRAParams
    cost_note = "every download holds the matrices beside which adapters stand, as they are after all rounds so far."

    def __init__(self, params: FLoRAParams, problem: Problem) -> None:
        super().__init__(params, problem)
        layers = {name: self.problem.backbone.get_submodule(name.rpartition(".")[0]) for name in self._names_of_a}
        foreign = [name for name, layer in layers.items() if not isinstance(layer, AdaptedLinear)]
        if foreign:
            raise ConfigError(
                f"dapper_args.method: flora adds to the matrices under adapters, and knows those of model_args.adapter"
                f" alone, not `{foreign[0]}`; take it out of the network and set model_args.adapter, or take flexlora"
            )

    def build_model(self, backbone: Backbone) -> Backbone:
        """``backbone``, whose matrices under adapters travel, though nobody trains them."""
        changed = copy.deepcopy(backbone)
        for layer in changed.modules():
            if isinstance(layer, AdaptedLinear):
                layer.weight = MovedAtServer(layer.weight.detach(), requires_grad=False)
        return changed

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The first components of every adapter, and the channels that are the largest in the base as it is now."""
        return self.nested_plan(server.profiles[client_id].ratio, self.problem.whole(server.weights))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs from a zero product; the matrices of the base, which stayed as they were, are not sent."""
        upload = super().local_update(client, downlink)
        weights = {name: tensor for name, tensor in upload.weights.items() if name not in self.merged}
        return replace(upload, weights=weights, plan=self._sent_up(upload.plan))

    def aggregation(self, server: ServerState) -> Aggregation:
        """W <- W + (alpha / r) sum_k p_k B_k A_k; then a new A, and B of zeros."""
        layout = self.problem.layout
        bounds = {adapter: (layout.groups[adapter.group].channels,) for adapter in self.adapters}
        products = ProductMean(self.adapter_weights(server), layout, bounds)
        return self.adapters_apart(server, _MergingMean(products, server, self), besides=self.merged)

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        """An upload holds what its client was sent, but for the matrices of the base."""
        without = replace(upload.plan, omitted=upload.plan.omitted ^ self.merged)  # differs where one of them was sent
        super().check_plan(server, replace(upload, plan=without))

    def lacked(self, plan: PruningPlan) -> frozenset[str]:
        """A client's model has the matrices of the base, though it does not send them."""
        return super().lacked(plan) - self.merged

    def footprint(self, ratio: float) -> Footprint:
        """As of other methods, but that the matrices of the base travel down alone."""
        whole = super().footprint(ratio)
        layout = self.problem.layout
        widths = self.problem.widths(ratio)
        others = layout.tensors.keys() - self.merged
        down_alone = count_bytes(layout, widths, skipped=others, kind=layout.uplink)
        return replace(whole, bytes_up=whole.bytes_up - down_alone)

    @property
    def beyond_sums(self) -> str:
        return "each client's A and B, to average their products"

    @property
    def merged(self) -> frozenset[str]:
        """Names of the matrices to which products are added."""
        return frozenset(weight_of(name) for name in self._names_of_a)

    @property
    def _names_of_a(self) -> list[str]:
        return [adapter.a for adapter in self.adapters]

    def _sent_up(self, plan: PruningPlan) -> PruningPlan:
        return replace(plan, omitted=plan.omitted | self.merged)


def weight_of(a: str) -> str:
    """Return the name of the matrix beside which the adapter of this A stands."""
    return f"{a.rpartition('.')[0]}.weight"


class _MergingMean:
    """Mean of products that goes into the matrices beside the adapters."""

    def __init__(self, products: ProductMean, server: ServerState, method: FLoRA) -> None:
        self._products = products
        self._before = server.weights
        self._backbone = method.problem.backbone
        self._drawn = torch_generator(method.problem.seed, Stream.METHOD, server.round + 1)

    def add(self, upload: Upload, weight: float) -> None:
        self._products.add(upload, weight)

    def result(self) -> dict[str, Tensor]:
        return merged_anew(self._before, self._products.wholes(), self._backbone, self._drawn)


def merged_anew(
    before: Tensors, products: Mapping[Adapter, Tensor], backbone: Backbone, drawn: torch.Generator
) -> dict[str, Tensor]:
    """Return matrices to which ``products`` (out, in) are added by alpha / r, new A's, and B's of zeros, by name.

    A is drawn as a new adapter's is, uniformly within 1 / sqrt(in).
    """
    found = dict[str, Tensor]()
    for adapter, whole in products.items():
        name = weight_of(adapter.a)
        layer = backbone.get_submodule(name.rpartition(".")[0])
        assert isinstance(layer, AdaptedLinear)
        moved = layer.scaling * (whole.t() if layer.is_transposed else whole)
        found[name] = (before[name].double() + moved).to(before[name])
        a = before[adapter.a]
        bound = 1 / math.sqrt(a.shape[1])
        found[adapter.a] = torch.empty(a.shape).uniform_(-bound, bound, generator=drawn).to(a)
        found[adapter.b] = torch.zeros_like(before[adapter.b])
    return found
