"""What a run's last global model and its data tell beyond the ledger, if they are available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from fedml_dapper.datasets import TestData
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation.confusion import Counts, confusion
from fedml_dapper.evaluation.omissions import Omissions
from fedml_dapper.evaluation.predictions import draw_predictions
from fedml_dapper.federation import MODEL_NAME, Experiment, RunRecord
from fedml_dapper.federation.run_folder.finished import FinishedRun, open_finished
from fedml_dapper.fleet import demands
from fedml_dapper.models import Backbone
from fedml_dapper.randomness.seeding import Stream, torch_generator

MOST_SAMPLES = 1000
"""Most samples of a domain's test set that are looked at, as the report is written on the CPU."""


@dataclass(frozen=True)
class LastModel:
    """What the last model and the data tell; all of it is empty where they are elsewhere."""

    peak_memory: Mapping[int, int] = field(default_factory=dict)
    """Level -> peak bytes of training, counted as ``fedml-dapper footprint`` counts them."""
    confusions: Mapping[str, Counts] = field(default_factory=dict)
    """Domain -> confusion of classes, if the task has classes and the method a global model."""
    predictions: Figure | None = None
    """Test samples with the model's predictions, if the task can draw them."""


def look_at_last_model(run: RunRecord, run_dir: Path, omissions: Omissions, trust_code: bool = False) -> LastModel:
    """Look at the last model of a run, and leave out what its data or code no longer give.

    They may have changed since the run, be missing, or fail; ``omissions`` notes what is left out.
    """
    sections = run.settings
    if sections.get("data_args", {}).get("partition") == "own" or sections.get("data_args", {}).get("dataset") is None:
        return LastModel()  # the data are the silos', or were passed by a program
    if sections.get("model_args", {}).get("model") is None or not (run_dir / MODEL_NAME).is_file():
        return LastModel()
    finished = omissions.with_fallback(
        "a look at the last model", lambda: open_finished(run_dir, trust_code=trust_code), None
    )
    if finished is None:
        return LastModel()
    method = finished.method
    experiment = finished.experiment
    memory: dict[int, int] = omissions.with_fallback(
        "peak memory", lambda: {demand.level: demand.memory_bytes for demand in demands(method)}, {}
    )
    if experiment is None or not method.has_global_model:
        return LastModel(memory)
    model = omissions.with_fallback(
        "confusions and predictions", lambda: _global_model(run, finished, experiment), None
    )
    if model is None:
        return LastModel(memory)
    model = model.to(experiment.device).eval()
    return LastModel(
        memory,
        omissions.with_fallback("confusions", lambda: _confusions(model, experiment), {}),
        omissions.with_fallback("predictions", lambda: _predictions(model, experiment), None),
    )


def _global_model(run: RunRecord, finished: FinishedRun, experiment: Experiment) -> Backbone:
    """Return the global model; raise :class:`DataError` where domains or classes are not the run's any more."""
    domains = {test.domain for test in experiment.tests}
    if domains != set(run.domains) or (run.classes and experiment.record().classes != run.classes):
        raise DataError(
            f"the data have domains {', '.join(sorted(domains))} by now, and the run had {', '.join(run.domains)}, or"
            " other classes"
        )
    return finished.method.global_model(finished.state)


@torch.no_grad()
def _confusions(model: Backbone, experiment: Experiment) -> dict[str, Counts]:
    problem = experiment.method.problem
    classes = experiment.num_classes
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
