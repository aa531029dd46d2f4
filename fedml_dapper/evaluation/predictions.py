"""Test samples and a run's predictions for them, for tasks that can draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedml_dapper.datasets import TestData
from fedml_dapper.evaluation.style import WIDTH
from fedml_dapper.inputs import rows
from fedml_dapper.models import Backbone
from fedml_dapper.tasks import Task

_ACROSS = 2
_DOWN = 2
"""Samples of a domain: rows of them, each ``_ACROSS`` wide."""


@torch.no_grad()
def draw_predictions(model: Backbone, task: Task, tests: Sequence[TestData], device: torch.device) -> Figure:
    """Draw the first samples of each of ``tests``: two per row, each as the task's panels side by side."""
    columns = _ACROSS * len(task.panels)
    rows = _DOWN * len(tests)
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
            row = _DOWN * place + number // _ACROSS
            left = number % _ACROSS * len(task.panels)
            for column, panel in enumerate(panels, start=left):
                grid[row, column].imshow(panel.numpy(), interpolation="nearest")
    return figure


def _first(test: TestData, task: Task, model: Backbone, device: torch.device) -> Tensor:
    """Panels of the first samples, uint8 (samples, panels, H, W, 3)."""
    inputs, targets = next(iter(test.batches(device)))
    inputs = rows(inputs, slice(_ACROSS * _DOWN))
    targets = targets[: _ACROSS * _DOWN]
    return task.draw(inputs, targets, model(inputs)).cpu()
