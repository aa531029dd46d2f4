"""The global model on every domain's test set, and the best so far (METHODS A.8)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch.nn import functional as F

from fedml_dapper.datasets import TestData
from fedml_dapper.federation.records import Scores
from fedml_dapper.models import Backbone


class Scorer:
    """Scores models on all domains and remembers the best values."""

    def __init__(self, tests: Sequence[TestData], device: torch.device) -> None:
        self._tests = tests
        self._device = device
        self._best_global = 0.0
        self._best_domain = {test.domain: 0.0 for test in tests}

    def score(self, model: Backbone) -> Scores:
        """Top-1 accuracy and mean cross-entropy per domain, in evaluation mode."""
        model.to(self._device).eval()
        accuracy, loss = {}, {}
        for test in self._tests:
            accuracy[test.domain], loss[test.domain] = _score_domain(model, test, self._device)
            self._best_domain[test.domain] = max(self._best_domain[test.domain], accuracy[test.domain])
        mean = fmean(accuracy.values())
        self._best_global = max(self._best_global, mean)
        return Scores(
            global_accuracy=mean,
            domain_accuracy=accuracy,
            domain_loss=loss,
            best_global_accuracy=self._best_global,
            best_domain_accuracy=dict(self._best_domain),
        )


@torch.no_grad()
def _score_domain(model: Backbone, test: TestData, device: torch.device) -> tuple[float, float]:
    correct, loss = 0, 0.0
    for batch in test.batches(device):
        logits = model(batch.images)
        correct += int((logits.argmax(dim=1) == batch.labels).sum())
        loss += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
    return 100 * correct / test.num_samples, loss / test.num_samples
