"""The global model on every domain's test set, and the best so far (METHODS A.8); clients' own models on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, pstdev

import torch
from torch.nn import functional as F

from fedml_dapper.datasets import TestData
from fedml_dapper.federation.records import PersonalScores, Scores
from fedml_dapper.models import Backbone


class Scorer:
    """Scores models on all domains and remembers the best values."""

    def __init__(self, tests: Sequence[TestData], unseen: TestData | None, device: torch.device) -> None:
        self._tests = tests
        self._unseen = unseen
        self._device = device
        self._best_global = 0.0
        self._best_domain = {test.domain: 0.0 for test in tests}

    def score(self, models_for: Callable[[str], Iterable[Backbone]], newcomers: Backbone | None = None) -> Scores:
        """Top-1 accuracy and mean cross-entropy per domain; the mean over a domain's models where it has several.

        ``newcomers`` is the model for the unseen domain.
        """
        accuracy, loss = {}, {}
        for test in self._tests:
            figures = [evaluate(model, test, self._device) for model in models_for(test.domain)]
            accuracy[test.domain], loss[test.domain] = (fmean(column) for column in zip(*figures, strict=True))
            self._best_domain[test.domain] = max(self._best_domain[test.domain], accuracy[test.domain])
        unseen = None
        if newcomers is not None and self._unseen is not None:
            unseen = evaluate(newcomers, self._unseen, self._device)
        mean = fmean(accuracy.values())
        self._best_global = max(self._best_global, mean)
        return Scores(
            global_accuracy=mean,
            domain_accuracy=accuracy,
            domain_loss=loss,
            best_global_accuracy=self._best_global,
            best_domain_accuracy=dict(self._best_domain),
            unseen_accuracy=None if unseen is None else unseen[0],
        )


def summarise(accuracies: Sequence[float], sizes: Sequence[int]) -> PersonalScores:
    """The statistics of FDSE and FedCMD (METHODS E.5, E.6) over clients with ``sizes`` test samples."""
    return PersonalScores(
        overall=fmean(accuracies, weights=sizes),
        average=fmean(accuracies),
        worst=min(accuracies),
        deviation=pstdev(accuracies),
        accuracy=tuple(accuracies),
    )


@torch.no_grad()
def evaluate(model: Backbone, test: TestData, device: torch.device) -> tuple[float, float]:
    """Top-1 accuracy (percent) and mean cross-entropy of ``model``, in evaluation mode."""
    model.to(device).eval()
    correct, loss = 0, 0.0
    for batch in test.batches(device):
        logits = model(batch.images)
        correct += int((logits.argmax(dim=1) == batch.labels).sum())
        loss += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
    return 100 * correct / test.num_samples, loss / test.num_samples
