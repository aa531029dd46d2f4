"""Reports of training whose figures are read late."""

from __future__ import annotations

import pickle
from dataclasses import replace

import torch

from fedml_dapper.methods.contract.messages import TrainingMetrics
from fedml_dapper.methods.contract.metrics_on_gpu import MetricsOnGPU


def test_a_loss_is_that_of_the_moment_it_is_read() -> None:
    loss = torch.tensor(0.0)
    metrics = MetricsOnGPU(loss, steps=3, seconds=0.5)
    loss.fill_(2)
    assert (metrics.loss, metrics.steps, metrics.seconds) == (2, 3, 0.5)
    loss.fill_(4)
    assert metrics.loss == 2


def test_it_is_replaced_and_sent_as_other_reports_are() -> None:
    metrics = MetricsOnGPU(torch.tensor(2.0), steps=3, seconds=0.5)
    more = replace(metrics, steps=5, accuracy_after=90.0)
    assert (more.loss, more.steps, more.accuracy_before, more.accuracy_after) == (2, 5, None, 90)
    sent = pickle.loads(pickle.dumps(more))
    assert sent == TrainingMetrics(2.0, 5, 0.5, None, 90.0)
    assert type(sent) is TrainingMetrics
