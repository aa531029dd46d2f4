"""What is measured after a round: the global model on every domain, clients' own models on their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import torch
from torch.nn import functional as F

from fedml_dapper.datasets import TestData
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.records import PersonalScores, Scores
from fedml_dapper.methods import ClientContext, ClientProfile, Memory, ServerState
from fedml_dapper.models import Backbone
from fedml_dapper.profiling import part

Figures = tuple[float, float]
"""Top-1 accuracy in percent, and mean cross-entropy in nats."""

CPU_BATCH = 32
"""Images that a CPU takes through the model at once: their activations stay in its cache, which saves a fifth."""


@dataclass(frozen=True)
class Measured:
    """What a tested round's record says of accuracies; see :class:`RoundRecord` for when something is None."""

    scores: Scores | None = None
    validation_scores: Scores | None = None
    personal: PersonalScores | None = None
    validation: PersonalScores | None = None


class Scoring:
    """Measures a round's models on test and validation samples, and remembers the best values.

    A domain's figures are the global model's on its samples. For a method without a global model they are the mean over
    the domain's clients, each with its own model on its own samples.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._method = experiment.method
        self.best, self.best_validation = Best(), Best()

    @part("evaluation")
    def measure(self, state: ServerState, memories: dict[int, Memory] | None) -> Measured:
        """``memories`` are the clients', without which only they have their own models."""
        experiment, method = self._experiment, self._method
        wants_personal = experiment.settings.dapper_args.evaluation.personal
        test, validation = dict[int, Figures](), dict[int, Figures]()
        if memories is not None and (wants_personal or not method.has_global_model):
            test, validation = self._own_figures(state, memories)
        scores = validation_scores = None
        if experiment.silos_have_own_data and not experiment.tests:
            return Measured()
        if method.has_global_model:
            model = method.global_model(state)
            scores = self.best.update(self._by_domain(model, experiment.tests), self._unseen(state))
            if experiment.validations:
                validation_scores = self.best_validation.update(self._by_domain(model, experiment.validations))
        elif test:
            scores = self.best.update(self._mean_by_domain(test), self._unseen(state))
            if validation:
                validation_scores = self.best_validation.update(self._mean_by_domain(validation))
        if not wants_personal:
            return Measured(scores, validation_scores)
        tests = experiment.client_tests
        return Measured(
            scores,
            validation_scores,
            _over_clients(test, [own.test for own in tests]),
            _over_clients(validation, [own.validation for own in tests if own.validation is not None]),
        )

    def of_silos(
        self, own: Mapping[int, Figures], num_tests: Mapping[int, int], profiles: Sequence[ClientProfile]
    ) -> Scores:
        """Scores out of what silos measured on their own test samples, by client id, each counting as often as it has
        samples."""
        by_domain: dict[str, dict[int, Figures]] = {}
        for client_id, figures in sorted(own.items()):
            by_domain.setdefault(profiles[client_id].domain, {})[client_id] = figures
        means = {domain: _weighted(figures, num_tests) for domain, figures in sorted(by_domain.items())}
        return self.best.update(means, overall=_weighted(own, num_tests)[0])

    def _own_figures(
        self, state: ServerState, memories: dict[int, Memory]
    ) -> tuple[dict[int, Figures], dict[int, Figures]]:
        """Every client's own model on its test samples, and on its validation samples where all clients have some."""
        experiment, test, validation = self._experiment, dict[int, Figures](), dict[int, Figures]()
        for client_id, own in enumerate(experiment.client_tests):
            context = ClientContext(
                profile=state.profiles[client_id],
                data=experiment.clients[client_id],
                memory=memories.setdefault(client_id, Memory()),
                device=experiment.device,
            )
            model = self._method.personal_model(context, self._method.downlink(state, client_id))
            test[client_id] = evaluate(model, own.test, experiment.device)
            if own.validation is not None:
                validation[client_id] = evaluate(model, own.validation, experiment.device)
        return test, validation if len(validation) == len(test) else {}

    def _by_domain(self, model: Backbone, samples: Sequence[TestData]) -> dict[str, Figures]:
        return {one.domain: evaluate(model, one, self._experiment.device) for one in samples}

    def _mean_by_domain(self, own: Mapping[int, Figures]) -> dict[str, Figures]:
        means = {}
        for domain in (test.domain for test in self._experiment.tests):
            members = [own[profile.client_id] for profile in self._experiment.profiles if profile.domain == domain]
            accuracies, losses = zip(*members, strict=True)
            means[domain] = (fmean(accuracies), fmean(losses))
        return means

    def _unseen(self, state: ServerState) -> float | None:
        """Accuracy on the domain that was left out, with the method's model for newcomers."""
        unseen, device = self._experiment.unseen, self._experiment.device
        if unseen is None:
            return None
        return evaluate(self._method.adapted_model(state, unseen.data, device), unseen.test, device)[0]


@dataclass
class Best:
    """The best accuracies so far, overall and per domain."""

    overall: float = 0.0
    domain: dict[str, float] = field(default_factory=dict)

    def update(
        self, figures: Mapping[str, Figures], unseen: float | None = None, overall: float | None = None
    ) -> Scores:
        """Take a round's ``figures`` in, and say how they compare; ``overall`` stands in for their mean."""
        accuracy = {domain: value for domain, (value, _) in figures.items()}
        mean = fmean(accuracy.values()) if overall is None else overall
        self.overall = max(self.overall, mean)
        self.domain = {domain: max(value, self.domain.get(domain, 0.0)) for domain, value in accuracy.items()}
        return Scores(
            global_accuracy=mean,
            domain_accuracy=accuracy,
            domain_loss={domain: loss for domain, (_, loss) in figures.items()},
            best_global_accuracy=self.overall,
            best_domain_accuracy=dict(self.domain),
            unseen_accuracy=unseen,
        )


def _weighted(figures: Mapping[int, Figures], weights: Mapping[int, int]) -> Figures:
    counts = [weights[client_id] for client_id in figures]
    accuracies, losses = zip(*figures.values(), strict=True)
    return fmean(accuracies, weights=counts), fmean(losses, weights=counts)


def _over_clients(own: Mapping[int, Figures], samples: Sequence[TestData]) -> PersonalScores | None:
    if not own:
        return None
    return summarise([accuracy for accuracy, _ in own.values()], [one.num_samples for one in samples])


def summarise(accuracies: Sequence[float], sizes: Sequence[int]) -> PersonalScores:
    """The statistics of FDSE and FedCMD over clients with ``sizes`` test samples."""
    return PersonalScores(
        overall=fmean(accuracies, weights=sizes),
        average=fmean(accuracies),
        worst=min(accuracies),
        deviation=pstdev(accuracies),
        accuracy=tuple(accuracies),
    )


@part("evaluation")
@torch.no_grad()
def evaluate(model: Backbone, test: TestData, device: torch.device) -> tuple[float, float]:
    """Top-1 accuracy (percent) and mean cross-entropy of ``model``, in evaluation mode."""
    model.to(device).eval()
    correct, loss = 0, 0.0
    for batch in test.batches(device):
        at_once = CPU_BATCH if device.type == "cpu" else len(batch.inputs)
        logits = torch.cat([model(images) for images in torch.split(batch.inputs, at_once)])
        correct += int((logits.argmax(dim=1) == batch.targets).sum())
        loss += float(F.cross_entropy(logits, batch.targets, reduction="sum"))
    return 100 * correct / test.num_samples, loss / test.num_samples
