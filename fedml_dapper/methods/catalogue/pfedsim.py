"""pFedSim (Tan et al., ECAI 2023): feature extractors mixed by how similar classifiers are.

After a warm-up by FedAvg every client keeps its classifier; its feature extractor is the mean of all clients' latest,
weighted by -ln(1 - sim), where sim is the mean cosine between the rows of two classifiers. Only clients that took part
in one round together are compared; the others have similarity 0, so a client that never met a similar one keeps its
own extractor. Classifiers are sent, to be compared.

A client that has not yet taken part after the warm-up gets the warm-up's model, which stays the global one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.methods.contract import Aggregation, MethodParams, ServerState
from fedml_dapper.methods.parts.client_models import ClientModels, KeepLatest
from fedml_dapper.methods.parts.layers import head_of
from fedml_dapper.methods.parts.two_phases import TwoPhaseMethod
from fedml_dapper.pruning import Tensors

_SELF = 0.9999
"""Similarity of a client to itself, and the largest that counts: 1 would be infinite weight."""


class PFedSimParams(MethodParams):
    """Settings of pFedSim."""

    warm_up: float = Field(default=0.5, gt=0, le=1)
    """Share of the rounds that are FedAvg; at least one round, and 1 is FedAvg altogether."""


class PFedSim(TwoPhaseMethod[PFedSimParams]):
    """FedAvg, then personal classifiers on extractors mixed by similarity."""

    name = "pfedsim"
    Params = PFedSimParams
    needs_representations = True
    cost_note = (
        "every client trains the full model and sends all of it, the personal classifier too. The server's memory grows"
        " with the clients: it holds the latest model of each and their similarities."
    )

    @property
    def first_share(self) -> float:
        return self.params.warm_up

    @cached_property
    def _head(self) -> frozenset[str]:
        return head_of(self.problem.backbone)

    def kept(self, instructions: Tensors) -> frozenset[str]:
        """State-dict entries of the classifier."""
        return self._head

    def mixing_weights(self, server: ServerState, client_id: int) -> Mapping[int, float]:
        return dict(enumerate(weights_of(_similarities(server)[client_id]).tolist()))

    @property
    def beyond_sums(self) -> str:
        return "each client's latest model"

    def aggregation(self, server: ServerState) -> Aggregation:
        if server.round < self.first_rounds:
            return super().aggregation(server)
        return KeepAndCompare(server, f"{self.problem.backbone.predictor_name}.weight")


class KeepAndCompare(KeepLatest):
    """Aggregation that remembers every client's latest model, and the similarities of the round's clients.

    Clients are compared by the weights named ``classifier``.
    """

    def __init__(self, server: ServerState, classifier: str) -> None:
        super().__init__(server, server.weights)
        self._classifier = classifier

    def close(self) -> None:
        super().close()
        similarities = _similarities(self._server)
        models = ClientModels(self._server)
        rows = {client_id: models.tensor(client_id, self._classifier) for client_id in self._received}
        for left, right in combinations(rows, 2):
            value = classifier_similarity(rows[left], rows[right])
            similarities[left, right] = similarities[right, left] = value
        self._server.memory.keep("similarities", {"matrix": similarities})


def classifier_similarity(left: Tensor, right: Tensor) -> float:
    """Similarity of two classifiers (C, d): max(0, mean over classes of the cosine between the two rows)."""
    return max(0.0, float(F.cosine_similarity(left.double(), right.double(), dim=1).mean()))


def weights_of(similarities: Tensor) -> Tensor:
    """Weights (N,) of a mixture: -ln(1 - sim), normalised to sum 1, of similarities (N,)."""
    closeness = -torch.log1p(-similarities.clamp(max=_SELF))
    return closeness / closeness.sum()


def _similarities(server: ServerState) -> Tensor:
    """Similarities of all clients, float64 (N, N); before any comparison every client is similar to itself only."""
    num_clients = len(server.profiles)
    kept = server.memory.recall("similarities").get("matrix")
    return _SELF * torch.eye(num_clients, dtype=torch.float64) if kept is None else kept.clone()
