"""FPL (Huang et al., CVPR 2023): federated prototype learning.

Clients send the mean representation of each class with their model. The server clusters each class's prototypes, so
that frequent domains do not outweigh rare ones, and sends the cluster means and their mean, the unbiased prototype. In
training a representation is contrasted with the cluster prototypes of all classes and drawn to its class's unbiased
one. Full models on every client; the server averages them as in FedAvg.

Prototypes are those of the last round's clients; where a class was absent there, its images have no terms. Sample
counts per class, which cluster means do not use, are not sent. The original divides the terms' sum by the batch size
and fails where no image of a batch has a prototype; here such a batch is trained on cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    LocalTraining,
    Loss,
    Method,
    MethodParams,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.finch import cluster_means, finch
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Footprint, Tensors


class FPLParams(MethodParams):
    """Settings of FPL; ``tau`` as in DapperFL, Table 4. The switches are the FPL paper's ablations."""

    tau: float = Field(default=0.02, gt=0)
    """Temperature of the contrast."""
    contrast: bool = True
    """Term L_con, the contrast with cluster prototypes."""
    consistency: bool = True
    """Term L_unb, the squared distance from the unbiased prototype."""


class FPL(Method[FPLParams]):
    """FedAvg with clustered class prototypes that all clients share."""

    name = "fpl"
    Params = FPLParams
    needs_labels = True
    needs_representations = True
    cost_note = "every client trains the full model; the prototypes that it receives are not in its bytes down."

    def check_clients(self, clients: Sequence[ClientData]) -> None:
        super().check_clients(clients)
        held = [set(client.labels.tolist()) for client in clients if client.labels is not None]
        if len(set(chain.from_iterable(held))) == sum(len(classes) for classes in held):
            raise ConfigError(
                "dapper_args.method: fpl shares class prototypes, but no class is held by two clients; raise"
                " data_args.client_share or train_args.client_num_in_total, or choose another method"
            )

    def footprint(self, ratio: float) -> Footprint:
        """FedAvg's cost, and up the prototypes of a client that holds every class.

        Left out are fewer classes, and the prototypes on the way down, whose number depends on the clustering; the
        records of a run count both.
        """
        cost = super().footprint(ratio)
        predictor = self.problem.backbone.predictor
        prototype = predictor.in_features * torch.float32.itemsize + torch.int64.itemsize
        return replace(cost, bytes_up=cost.bytes_up + predictor.out_features * prototype)

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The global model and, after round 1, all prototypes."""
        return replace(super().downlink(server, client_id), extras=server.memory.recall("prototypes"))

    def objective(self, client: ClientContext, downlink: Downlink, means: ClassMeans | None = None) -> Loss:
        """L_CE + (1 / B) sum (L_con + L_unb), or L_CE before there are prototypes; ``means`` gets to see every z."""
        params = self.params
        shared = {name: tensor.to(client.device) for name, tensor in downlink.extras.items()}

        def loss(model: Backbone, batch: Batch) -> Tensor:
            representations = model.encode(batch.inputs)
            if means is not None:
                means.add(representations, batch.targets)
            total = self.problem.task.loss(model.predict(representations), batch.targets)
            if shared and params.contrast:
                total = total + contrast(
                    representations, batch.targets, shared["clusters"], shared["cluster_classes"], params.tau
                )
            if shared and params.consistency:
                total = total + inconsistency(representations, batch.targets, shared["unbiased"], shared["classes"])
            return total

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs; the prototypes are means over the last one's training pass."""
        model = self.load(client, downlink)
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model)
        for _ in range(epochs):
            means = ClassMeans(model, client.device)
            training.epoch(model, optimizer, self.objective(client, downlink, means))
        return self.upload(client, downlink, model, training, means.prototypes())

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        check_prototypes(upload.extras, *self.problem.backbone.predictor.weight.shape)

    @property
    def beyond_sums(self) -> str:
        return "each client's class prototypes"

    def aggregation(self, server: ServerState) -> Aggregation:
        """FedAvg's weighted mean, and FINCH over the prototypes of each class."""
        return AverageAndCluster(server, self.problem)


class ClassMeans:
    """Running means of representations per class."""

    def __init__(self, model: Backbone, device: torch.device) -> None:
        classes, width = model.predictor.weight.shape
        self._sums = torch.zeros(classes, width, dtype=torch.float64, device=device)
        self._counts = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, representations: Tensor, labels: Tensor) -> None:
        """Take in ``representations``, shape (B, d), of images of classes ``labels``, shape (B,)."""
        members = F.one_hot(labels, len(self._counts)).double()
        self._sums += members.T @ representations.detach().double()
        self._counts += members.sum(dim=0)

    def prototypes(self) -> dict[str, Tensor]:
        """Extras of an upload: ``classes`` seen, int64 (K,), ascending, and their means as ``prototypes``, float32 (K,
        d)."""
        classes = self._counts.nonzero().flatten()
        means = self._sums[classes] / self._counts[classes, None]
        return {"classes": classes, "prototypes": means.float()}


class AverageAndCluster(RecoverAndAverage):
    """The weighted mean of the models; the clusters of each class's prototypes go into the server's memory."""

    def __init__(self, server: ServerState, problem: Problem) -> None:
        super().__init__(server, problem)
        self._received: dict[int, list[Tensor]] = {}
        self._num_classes, self._width = problem.backbone.predictor.weight.shape

    def add(self, upload: Upload) -> None:
        check_prototypes(upload.extras, self._num_classes, self._width)
        super().add(upload)
        classes = upload.extras["classes"].tolist()
        prototypes = upload.extras["prototypes"].cpu()
        for class_, prototype in zip(classes, prototypes, strict=True):
            self._received.setdefault(class_, []).append(prototype)

    def close(self) -> None:
        super().close()
        clusters = {class_: _clustered(torch.stack(self._received[class_])) for class_ in sorted(self._received)}
        classes = torch.tensor(list(clusters))
        sizes = torch.tensor([len(means) for means in clusters.values()])
        self._server.memory.keep(
            "prototypes",
            {
                "classes": classes,
                "unbiased": torch.stack([means.mean(dim=0) for means in clusters.values()]),
                "cluster_classes": classes.repeat_interleave(sizes),
                "clusters": torch.cat(list(clusters.values())),
            },
        )


def check_prototypes(extras: Tensors, num_classes: int, width: int) -> None:
    """Check that ``extras`` are prototypes as ``ClassMeans`` makes them; raises :class:`ProtocolError`."""
    if extras.keys() != {"classes", "prototypes"}:
        raise ProtocolError(f"upload should hold classes and prototypes besides the model, found {sorted(extras)}")
    classes = extras["classes"]
    prototypes = extras["prototypes"]
    if classes.dtype != torch.int64 or classes.dim() != 1 or len(classes) == 0:
        raise ProtocolError("upload's classes should be a non-empty list of int64 numbers")
    if int(classes[0]) < 0 or int(classes[-1]) >= num_classes or bool((classes.diff() <= 0).any()):
        raise ProtocolError(f"upload's classes must rise strictly within 0..{num_classes - 1}")
    if prototypes.dtype != torch.float32 or prototypes.shape != (len(classes), width):
        raise ProtocolError(
            f"upload's prototypes are {tuple(prototypes.shape)} {prototypes.dtype},"
            f" expected {(len(classes), width)} float32"
        )


def contrast(representations: Tensor, labels: Tensor, clusters: Tensor, cluster_classes: Tensor, tau: float) -> Tensor:
    """Contrast L_con: (1 / B) sum of -log(sum over p in P^y of e^(cos(z, p) / tau) / sum over all p).

    The sum is over images whose class y has a prototype p.

    ``representations`` (B, d), ``labels`` (B,), ``clusters`` (M, d) of classes ``cluster_classes`` (M,).
    """
    own = labels[:, None] == cluster_classes
    matched = own.any(dim=1)
    logits = F.normalize(representations[matched], dim=1) @ F.normalize(clusters, dim=1).T / tau
    own_logits = logits.masked_fill(~own[matched], -torch.inf)
    return (logits.logsumexp(dim=1) - own_logits.logsumexp(dim=1)).sum() / len(labels)


def inconsistency(representations: Tensor, labels: Tensor, unbiased: Tensor, classes: Tensor) -> Tensor:
    """Distance L_unb: (1 / B) sum of (1 / d) ||z - u^y||^2 over images whose y is among ``classes`` (K,).

    ``representations`` (B, d), ``labels`` (B,), ``unbiased`` (K, d).
    """
    image, row = (labels[:, None] == classes).nonzero(as_tuple=True)
    return (representations[image] - unbiased[row]).square().mean(dim=1).sum() / len(labels)


def _clustered(prototypes: Tensor) -> Tensor:
    """The means of the FINCH clusters of one class's prototypes, shape (clusters, d)."""
    return cluster_means(prototypes, finch(prototypes))
