"""Evaluation of a model on test samples, in the task's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedml_dapper.datasets import TestData
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.task_errors import task_blamed
from fedml_dapper.inputs import count, pieces
from fedml_dapper.models import blamed
from fedml_dapper.process.profiling import part
from fedml_dapper.tasks import Task

CPU_BATCH = 32
"""Largest batch in evaluation on a CPU: activations of so many images stay in its cache, which saves a fifth of the
time."""


@dataclass(frozen=True)
class Figures:
    """Figures of a model on some samples: the task's headline, the mean loss per sample, and other figures by name."""

    headline: float
    loss: float
    others: Mapping[str, float] = field(default_factory=dict)


@part("evaluation")
@torch.no_grad()
def evaluate(model: nn.Module, task: Task, test: TestData, device: torch.device) -> Figures:
    """Evaluate ``model`` on test samples, in evaluation mode and on ``device``, where it stays.

    Raises:
        ConfigError: The task's figures lack the one that it names as its headline.
    """
    model.to(device).eval()
    sums = dict[str, Tensor]()
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for batch in test.batches(device):
        at_once = CPU_BATCH if device.type == "cpu" else count(batch.inputs)
        with blamed("the network cannot be tested"):
            outputs = torch.cat([model(inputs) for inputs in pieces(batch.inputs, at_once)])
        with task_blamed(task):
            summands = task.sums(outputs, batch.targets)
            loss += task.total_loss(outputs, batch.targets)
        for name, value in summands.items():
            summand = value.double()
            sums[name] = sums[name] + summand if name in sums else summand
    with task_blamed(task):
        figures = dict(task.figures({name: total.cpu() for name, total in sums.items()}))
    if task.headline.name not in figures:
        raise ConfigError(
            f"train_args.task: figures of task `{task.name}` lack its headline `{task.headline.name}`; they are"
            f" {', '.join(figures) or 'none'}"
        )
    return Figures(figures.pop(task.headline.name), float(loss) / test.num_samples, figures)
