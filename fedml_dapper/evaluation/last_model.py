"""What a run's last global model and its data tell beyond the ledger, where they are at hand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from fedml_dapper.datasets import TestData
from fedml_dapper.errors import DapperError
from fedml_dapper.evaluation.confusion import Counts, confusion
from fedml_dapper.evaluation.predictions import draw_predictions
from fedml_dapper.federation import MODEL_NAME, Experiment, RunRecord
from fedml_dapper.federation.finished import open_finished
from fedml_dapper.fleet import demands
from fedml_dapper.models import Backbone
from fedml_dapper.seeding import Stream, torch_generator

LOGGER = logging.getLogger(__name__)
MOST_SAMPLES = 1000
"""Of a domain's test set; the report is written on the CPU."""


@dataclass(frozen=True)
class LastModel:
    """All of it is empty where model or data are elsewhere."""

    peak_memory: Mapping[int, int] = field(default_factory=dict)
    """By level: bytes that training takes at most, counted as ``fedml-dapper footprint`` counts them."""
    confusions: Mapping[str, Counts] = field(default_factory=dict)
    """By domain, where the task has classes and the method a global model."""
    predictions: Figure | None = None
    """Test samples and what the model makes of them, where the task can draw."""


def look_at_last_model(run: RunRecord, run_dir: Path) -> LastModel:
    """With a warning where the run's data or code are not what they were, or not here."""
    sections = run.settings
    if sections.get("data_args", {}).get("partition") == "own" or sections.get("data_args", {}).get("dataset") is None:
        return LastModel()  # the silos', or a program's
    if sections.get("model_args", {}).get("model") is None or not (run_dir / MODEL_NAME).is_file():
        return LastModel()
    try:
        finished = open_finished(run_dir)
        method = finished.method
        memory = {demand.level: demand.memory_bytes for demand in demands(method)}
        if finished.experiment is None or not method.has_global_model:
            return LastModel(memory)
        model = method.global_model(finished.state).to(finished.experiment.device).eval()
    except (DapperError, RuntimeError) as error:
        LOGGER.warning("the report goes without a look at the last model: %s", error)
        return LastModel()
    return LastModel(memory, _confusions(model, finished.experiment), _predictions(model, finished.experiment))


@torch.no_grad()
def _confusions(model: Backbone, experiment: Experiment) -> dict[str, Counts]:
    problem, classes = experiment.method.problem, experiment.num_classes
    if not problem.task.has_labels or model(problem.example).shape[1:] != (classes,):
        return {}
    seed = experiment.settings.common_args.random_seed
    return {
        test.domain: confusion(model, _some(test, seed, place), classes, experiment.device)
        for place, test in enumerate(experiment.tests)
    }


def _some(test: TestData, seed: int, place: int) -> TestData:
    order = torch.randperm(test.num_samples, generator=torch_generator(seed, Stream.VALIDATION, place))
    return test if len(order) <= MOST_SAMPLES else test.take(order[:MOST_SAMPLES])


def _predictions(model: Backbone, experiment: Experiment) -> Figure | None:
    task = experiment.method.problem.task
    return draw_predictions(model, task, experiment.tests, experiment.device) if task.panels else None
