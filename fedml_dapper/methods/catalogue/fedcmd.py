"""FedCMD (IEEE TC 2024): the clients elect the layer that each of them keeps to itself.

Phase 1 is FedAvg for K_p = max(1, rho K) rounds. Every client votes for the layer that changes least how much further
its data are from the labels than from the images (Eq. 6); l* is the layer that wins most rounds. Phase 2: layers before
l* are averaged as in FedAvg, l* stays with the client, layers behind it are mixed for every client by the similarity of
the clients' l* (Eq. 7).

Decisions: a layer's output is taken where the next layer gets it, after activation and, where there is one, pooling.
Gaussians are fitted to values scaled to [0, 1] by their range, labels too, over all of a client's training images after
its local training; ``metric_data: per_batch`` scores every training batch as public code does, and the majority is the
client's vote. Unlike there, deviations count beside means and differences keep their signs. Ties go to the lower layer
and are reported. K_p is rounded, half to even. Where every round of phase 1 was void, l* is the model's last layer.

In phase 2 the server's model goes on, for reporting and for newcomers: FedAvg of all but l*, which stays as phase 1
left it. Similarities below 0 count as 0. As few clients take part in a round, the latest layers of all that were there
in phase 2 are mixed (``scope: round``: the last round's). l* is sent all the same, for the server to compare it.
BatchNorm's statistics are averaged too, but in phase 2 a client normalises by its own (``local_bn_stats``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import moved, one_tensor
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Loss,
    MethodParams,
    Phase,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
    Value,
    forward_only,
)
from fedml_dapper.methods.parts.activations import observed
from fedml_dapper.methods.parts.averaging import check_like
from fedml_dapper.methods.parts.client_models import ClientModels, KeepLatest
from fedml_dapper.methods.parts.layer_election import (
    AverageAndElect,
    LayerMetric,
    check_vote,
    elected,
    favourite,
    voted_in,
    votes_so_far,
    winner,
)
from fedml_dapper.methods.parts.layers import Layer, called_layers, layers_of, linear_layers, tensors_of
from fedml_dapper.methods.parts.two_phases import TwoPhaseMethod
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.models.resnet import ResNet
from fedml_dapper.pruning import DENSE, Tensors

_BATCH_VOTES = "batch_votes"


class FedCMDParams(MethodParams):
    """Settings of FedCMD; defaults are the paper's where it gives them."""

    rho: float = Field(default=0.1, gt=0, le=1)
    """Share of the rounds that elect the layer; 1 is FedAvg."""
    candidates: Literal["linear", "all"] = "linear"
    """Layers to elect from: the linear ones, or the convolutions too."""
    metric_data: Literal["local_data", "per_batch"] = "local_data"
    """Images to vote on: all training images, once after training, or every batch while training."""
    scope: Literal["cached", "round"] = "cached"
    """Clients whose layers are mixed: all clients seen in phase 2, or of the last round's and the client's own."""
    mix_by_similarity: bool = True
    """Mixing of the layers behind l*; False averages them like those before it (the paper's ablation)."""
    local_bn_stats: bool = True
    """Normalisation, in phase 2, by the client's own running statistics instead of the averaged ones."""


class FedCMD(TwoPhaseMethod[FedCMDParams]):
    """FedAvg with an election; then one personal layer, averages before it and mixtures behind it."""

    name = "fedcmd"
    Params = FedCMDParams
    needs_representations = True
    needs_labels = True
    cost_note = (
        "every client trains the full model and sends all of it, the personal layer too; in phase 1 it runs its images"
        " through the model once more. The server's memory grows with the clients: it holds the personal layer of each"
        " and those behind it."
    )

    def __init__(self, params: FedCMDParams, problem: Problem) -> None:
        self.sees_batches = params.metric_data == "per_batch"
        super().__init__(params, problem)
        if not isinstance(problem.example, Tensor):
            raise ConfigError(
                "dapper_args.method: fedcmd compares what layers give with what the network is given, one tensor, and"
                " inputs of these data are several; choose another method"
            )
        if params.candidates == "all" and isinstance(problem.backbone, ResNet):
            raise ConfigError(
                "dapper_args.params.fedcmd.candidates: `all` needs layers in one chain, which residual networks are"
                " not; set it to linear, or choose another model_args.model"
            )
        if not self.candidates:
            raise ConfigError(
                "dapper_args.method: fedcmd elects one of the layers that clients train, and all of its candidates are"
                " frozen; set dapper_args.params.fedcmd.candidates to all, or choose another method"
            )

    @property
    def first_share(self) -> float:
        return self.params.rho

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Names of the layers to elect from, in the order of the forward pass; the last one is the model's last.

        A layer whose weights another module uses without calling it, as torch's attention does, has no activations
        to vote by; one that is frozen is the same on all clients.
        """
        model = self.problem.backbone
        example = self.problem.example
        kinds = linear_layers(model, example)
        if self.params.candidates == "all":
            kinds |= {name for name, layer in model.named_modules() if isinstance(layer, _ConvNd)}
        seen = kinds & called_layers(model, example)
        return tuple(
            layer.name for layer in self._layers if layer.name in seen and self._trained_parameters(layer.name)
        )

    def _trained_parameters(self, layer: str) -> list[str]:
        """Names of the layer's parameters that are trained."""
        names = (f"{layer}.{name}" for name, _ in self.problem.backbone.get_submodule(layer).named_parameters())
        return [name for name in names if not self.problem.layout.tensors[name].frozen]

    @cached_property
    def _layers(self) -> list[Layer]:
        """All layers, with those of their tensors that clients send."""
        travelling = frozenset(self.problem.layout.travelling)
        layers = layers_of(self.problem.backbone)
        return [Layer(one.name, tuple(name for name in one.tensors if name in travelling)) for one in layers]

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs, and one more forward pass in rounds of phase 1 whose vote is on all images."""
        vote = (forward_only(DENSE),) if self.params.metric_data == "local_data" else ()
        return (*super().local_phases(profile), *vote)

    # Phase 1: the vote

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """Mean cross-entropy; with ``per_batch`` every batch of phase 1 also votes."""
        if self.params.metric_data == "local_data" or downlink.round > self.first_rounds:
            return self.problem.task_loss
        votes: list[Value] = [0] * len(self.candidates)
        client.memory.values[_BATCH_VOTES] = votes  # until the upload

        def loss(model: Backbone, batch: Batch) -> Tensor:
            metric = LayerMetric(self.candidates, client.device)
            with observed(model, self.candidates) as seen:
                value = self.problem.task_loss(model, batch)
                metric.add(one_tensor(batch.inputs), batch.targets, seen)
            choice = favourite(metric.scores())[0]
            votes[choice] = cast("int", votes[choice]) + 1
            return value

        return loss

    def upload(
        self, client: ClientContext, downlink: Downlink, model: Backbone, training: LocalTraining,
        extras: Tensors | None = None,
    ) -> Upload:  # fmt: skip
        if downlink.round <= self.first_rounds:
            choice, tied = self._vote(client, model)
            extras = {"vote": torch.tensor(choice), "tied": torch.tensor(int(tied))}
        return super().upload(client, downlink, model, training, extras)

    def _vote(self, client: ClientContext, model: Backbone) -> tuple[int, bool]:
        """The client's candidate, and whether others were as good."""
        if self.params.metric_data == "per_batch":
            return favourite([-votes for votes in cast("list[int]", client.memory.values.pop(_BATCH_VOTES))])
        return favourite(self.layer_scores(client, model))

    def layer_scores(self, client: ClientContext, model: Backbone) -> list[float]:
        """Scores s_l of all candidates for ``model``, in evaluation mode, on all of the client's training images."""
        metric = LayerMetric(self.candidates, client.device)
        model.eval()
        with torch.no_grad(), observed(model, self.candidates) as seen:
            for inputs, labels in client.data:
                images = one_tensor(moved(inputs, client.device))
                model(images)
                metric.add(images, labels.to(client.device), seen)
        return metric.scores()

    # Phase 2: who gets what

    def instructions(self, server: ServerState, client_id: int) -> Tensors:
        return {"layer": torch.tensor(self._elected(server))}

    def _elected(self, server: ServerState) -> int:
        """The candidate l*: the elected one, or the last where nobody could vote."""
        rounds = votes_so_far(server)
        return elected(rounds) if rounds else len(self.candidates) - 1

    def kept(self, instructions: Tensors) -> frozenset[str]:
        """Tensors of l* and, with ``local_bn_stats``, BatchNorm's statistics."""
        return self._split(instructions)[0] | self._statistics

    def mixed(self, instructions: Tensors) -> frozenset[str]:
        """Tensors of the layers behind l*."""
        return self._split(instructions)[1] - self._statistics

    def mixing_weights(self, server: ServerState, client_id: int) -> Mapping[int, float]:
        """Weights Phi_ij of every client j to be mixed for i = ``client_id`` (Eq. 7)."""
        if not self.params.mix_by_similarity:
            return {}
        models = ClientModels(server)
        layer = self.candidates[self._elected(server)]
        only_last = self.params.scope == "round"
        members = [j for j, last in models.rounds.items() if not only_last or last == server.round or j == client_id]
        parameters = self._trained_parameters(layer)
        vectors = [torch.cat([models.tensor(j, name).flatten() for name in parameters]) for j in members]
        similarities = similarity(torch.stack(vectors), members.index(client_id))
        return dict(zip(members, similarities.tolist(), strict=True))

    def _split(self, instructions: Tensors) -> tuple[frozenset[str], frozenset[str]]:
        """Tensors of l*, and of the layers behind it."""
        names = [layer.name for layer in self._layers]
        position = names.index(self.candidates[int(instructions["layer"])])
        behind = (tensor for layer in self._layers[position + 1 :] for tensor in layer.tensors)
        return frozenset(self._layers[position].tensors), frozenset(behind)

    @cached_property
    def _statistics(self) -> frozenset[str]:
        model = self.problem.backbone
        norms = tensors_of(model, BatchNorm) if self.params.local_bn_stats else frozenset[str]()
        return norms - {name for name, _ in model.named_parameters()}

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        if upload.round <= self.first_rounds:
            check_vote(upload.extras, len(self.candidates))
        else:
            super().check_extras(server, upload)

    @property
    def beyond_sums(self) -> str:
        return "each client's latest model, and its vote for a layer"

    def aggregation(self, server: ServerState) -> Aggregation:
        if server.round < self.first_rounds:
            return AverageAndElect(server, self.problem, len(self.candidates))
        personal, behind = self._split(self.instructions(server, 0))
        return AverageAllButOne(server, self.problem, personal, behind)

    def round_notes(self, server: ServerState) -> Mapping[str, Value]:
        """Notes on phase 1: each candidate's votes, the round's winner, how many votes were ties; l* once it is
        known."""
        notes: dict[str, Value] = {}
        if voted_in(server, server.round):
            votes = votes_so_far(server)[-1]
            notes["votes"] = dict(zip(self.candidates, votes, strict=True))
            notes["winner"] = self.candidates[winner(votes)]
            notes["tied_votes"] = server.memory.values["tied_votes"]
        if server.round >= self.first_rounds:
            notes["personal_layer"] = self.candidates[self._elected(server)]
        return notes


class AverageAllButOne(RecoverAndAverage):
    """Aggregation of phase 2: FedAvg of all but ``personal``; the clients' ``personal`` and ``behind`` are
    remembered."""

    def __init__(self, server: ServerState, problem: Problem, personal: frozenset[str], behind: frozenset[str]) -> None:
        super().__init__(server, problem)
        self._unchanged = {name: server.weights[name] for name in personal}
        self._latest = KeepLatest(server, personal | behind)

    def add(self, upload: Upload) -> None:
        check_like(upload.weights, self._server.weights)
        super().add(upload)
        self._latest.add(upload)

    def close(self) -> None:
        super().close()
        self._server.weights |= self._unchanged
        self._latest.close()


def similarity(vectors: Tensor, own: int) -> Tensor:
    """Similarities (J,) of client i = ``own``: Phi_ij = max(0, v_i . v_j / (||v_i|| ||v_j|| + 1e-8)), Phi_ii = 1.

    ``vectors`` are the v_j, (J, P).
    """
    vectors = vectors.double()
    lengths = vectors.square().sum(dim=1).sqrt()
    row = ((vectors * vectors[own]).sum(dim=1) / (lengths * lengths[own] + 1e-8)).clamp(min=0)
    row[own] = 1
    return row
