"""Diagnosis of a cell's final model: where it errs, and for whom."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.benches.needs import Needs
from fedml_dapper.config import EvaluationArgs
from fedml_dapper.datasets import TestData
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation.confusion import Counts, confusion
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.files import xz
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.methods import ClientContext, Memory, as_sent
from fedml_dapper.models import Backbone
from fedml_dapper.randomness.seeding import Stream, torch_generator

DIAGNOSIS_NAME = "diagnosis.json"
_POINTS_PER_DOMAIN = 100


class LevelScore(Record):
    """Score of a client's own model on its own test samples, before and after one more local round."""

    client: int
    domain: str
    level: int
    ratio: float
    before: float
    after: float
    everywhere: float | None = None
    """Mean over all domains' test images of the slim model that the client was sent; None for a whole one."""


class Embedding(Record):
    """Representations of test images in two dimensions (t-SNE); every list but ``domains`` has one entry per image."""

    domains: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    label: tuple[int, ...]
    domain: tuple[int, ...]
    """Index into ``domains``."""


class Diagnosis(Record):
    """Closer look at a finished cell's final model."""

    confusion: dict[str, Counts]
    """Domain -> confusion of classes; empty where a sample's target is no class."""
    levels: tuple[LevelScore, ...]
    embedding: Embedding | None
    """None where a sample's target is no class."""
    needs: Needs | None = None
    """What a round cost clients; None in cells of earlier versions."""

    def save(self, path: Path) -> None:
        """Write the diagnosis to ``path``, whole or not at all."""
        with written_whole(path) as scratch:
            scratch.write_text(self.model_dump_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Diagnosis:
        """Read a diagnosis.

        Raises:
            DataError: The file is none.
        """
        found = xz.content(path)
        try:
            return cls.model_validate_json(found)
        except ValueError as error:
            raise DataError(f"{path}: not the diagnosis of a cell; was it written by another version?") from error


def diagnose(experiment: Experiment, server: Server) -> Diagnosis:
    """Diagnose the final model of ``server``; where there is none, the model of each domain's first client."""
    levels = _levels(experiment, server)
    needs = Needs.of(experiment)
    if not experiment.method.problem.task.has_labels:
        return Diagnosis(confusion={}, levels=levels, embedding=None, needs=needs)
    models = _models(experiment, server)
    device = experiment.device
    return Diagnosis(
        confusion={
            test.domain: confusion(models[test.domain], test, experiment.num_classes, device)
            for test in experiment.tests
        },
        levels=levels,
        embedding=_embedding(models, experiment.tests, experiment.settings.common_args.random_seed, device),
        needs=needs,
    )


def _models(experiment: Experiment, server: Server) -> Mapping[str, Backbone]:
    method = experiment.method
    if method.has_global_model:
        model = method.global_model(server.state)
        return dict.fromkeys((test.domain for test in experiment.tests), model)
    models: dict[str, Backbone] = {}
    for profile in experiment.profiles:
        if profile.domain not in models:
            models[profile.domain] = _own_model(experiment, server, profile.client_id)
    return models


def _own_model(experiment: Experiment, server: Server, client_id: int) -> Backbone:
    memory = copy.deepcopy(server.memories.get(client_id, Memory()))
    context = ClientContext(experiment.profiles[client_id], experiment.clients[client_id], memory, experiment.device)
    downlink = as_sent(experiment.method.downlink(server.state, client_id), experiment.method.problem.layout)
    return experiment.method.seeded_personal_model(context, downlink)


def _levels(experiment: Experiment, server: Server) -> tuple[LevelScore, ...]:
    settings = experiment.settings
    dapper_args = settings.dapper_args.model_copy(update={"evaluation": EvaluationArgs(personal=True)})
    measuring = replace(experiment, settings=settings.model_copy(update={"dapper_args": dapper_args}))
    clients = ClientSide(measuring, copy.deepcopy(server.memories))
    scores = []
    for client_id in server.round_clients():
        metrics = clients.update(server.downlink(client_id), experiment.clients[client_id]).metrics
        profile = experiment.profiles[client_id]
        assert metrics.accuracy_before is not None
        assert metrics.accuracy_after is not None
        scores.append(
            LevelScore(
                client=client_id,
                domain=profile.domain,
                level=profile.level,
                ratio=profile.ratio,
                before=metrics.accuracy_before,
                after=metrics.accuracy_after,
                everywhere=_everywhere(experiment, server, client_id) if experiment.method.slim_downlink else None,
            )
        )
    return tuple(scores)


def _everywhere(experiment: Experiment, server: Server, client_id: int) -> float:
    model = _own_model(experiment, server, client_id)
    return fmean(
        evaluate(model, experiment.method.problem.task, test, experiment.device).headline for test in experiment.tests
    )


@torch.no_grad()
def _embedding(
    models: Mapping[str, Backbone], tests: tuple[TestData, ...], seed: int, device: torch.device
) -> Embedding:
    from sklearn.manifold import TSNE  # noqa: PLC0415  # slow, and most commands do without

    points: list[Tensor] = []
    labels: list[int] = []
    domains: list[int] = []
    for index, test in enumerate(tests):
        order = torch.randperm(test.num_samples, generator=torch_generator(seed, Stream.VALIDATION, index))
        few = test.take(order[:_POINTS_PER_DOMAIN])
        for batch in few.batches(device):
            points.append(models[test.domain].to(device).eval().encode(batch.inputs).cpu())
            labels += batch.targets.tolist()
            domains += [index] * len(batch.targets)
    representations = torch.cat(points).double().numpy()
    perplexity = min(30.0, (len(representations) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(np.nan_to_num(representations))
    return Embedding(
        domains=tuple(test.domain for test in tests),
        x=tuple(round(float(value), 3) for value in placed[:, 0]),
        y=tuple(round(float(value), 3) for value in placed[:, 1]),
        label=tuple(labels),
        domain=tuple(domains),
    )
