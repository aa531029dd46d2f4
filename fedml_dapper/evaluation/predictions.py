"""Test samples as the run's global model sees them, for tasks that can draw."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedml_dapper.config import Settings, check, sources
from fedml_dapper.datasets import TestData
from fedml_dapper.errors import DapperError, DataError
from fedml_dapper.evaluation.style import WIDTH
from fedml_dapper.federation import MODEL_NAME, RunRecord, build_experiment
from fedml_dapper.methods import ServerState
from fedml_dapper.models import Backbone
from fedml_dapper.tasks import Classification, Task, build_task

LOGGER = logging.getLogger(__name__)
_ACROSS, _DOWN = 2, 2
"""Samples of a domain."""


def predicted_samples(run: RunRecord, run_dir: Path) -> Figure | None:
    """Test samples of every domain with what the last global model of the run in ``run_dir`` makes of them.

    None where the task draws nothing or there is no global model; with a warning where the run's data or code are not
    what they were, or not here.
    """
    weights = run_dir / MODEL_NAME
    if run.settings["train_args"].get("task", Classification.name) == Classification.name:
        return None  # it draws nothing, whatever else the settings of another version say
    try:
        settings = check(Settings, run.settings, where=str(run_dir))
        data = settings.data_args
        if data.partition == "own" or data.dataset is None or settings.model_args.model is None:
            return None  # the silos', or a program's
        if not build_task(settings.train_args).panels or not weights.is_file():
            return None
        if run.sources != sources(settings):
            raise DataError("what the settings name is not what it was in the run")
        experiment = build_experiment(settings)
        method = experiment.method
        if not method.has_global_model:
            return None
        state = ServerState(settings.train_args.comm_round, load_file(weights), experiment.profiles)
        model = method.global_model(state).to(experiment.device).eval()
    except (DapperError, SafetensorError, RuntimeError) as error:
        LOGGER.warning("the report goes without predictions: %s", error)
        return None
    return draw_predictions(model, method.problem.task, experiment.tests, experiment.device)


@torch.no_grad()
def draw_predictions(model: Backbone, task: Task, tests: Sequence[TestData], device: torch.device) -> Figure:
    """The first samples of each of ``tests``: a row holds two of them, each as the task's panels side by side."""
    columns, rows = _ACROSS * len(task.panels), _DOWN * len(tests)
    tile = WIDTH / columns
    figure = Figure(figsize=(WIDTH, rows * tile + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    for column, name in enumerate(task.panels * _ACROSS):
        grid[0, column].set_title(name, fontsize="small")
    for place, test in enumerate(tests):
        grid[_DOWN * place, 0].set_ylabel(test.domain)
        samples = _first(test, task, model, device)
        for number, panels in enumerate(samples):
            row, left = _DOWN * place + number // _ACROSS, number % _ACROSS * len(task.panels)
            for column, panel in enumerate(panels, start=left):
                grid[row, column].imshow(panel.numpy(), interpolation="nearest")
    return figure


def _first(test: TestData, task: Task, model: Backbone, device: torch.device) -> Tensor:
    """Panels of the first samples, uint8 (samples, panels, H, W, 3)."""
    inputs, targets = next(iter(test.batches(device)))
    inputs, targets = inputs[: _ACROSS * _DOWN], targets[: _ACROSS * _DOWN]
    return task.draw(inputs, targets, model(inputs)).cpu()
