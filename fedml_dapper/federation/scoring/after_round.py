"""Tests after a round: the global model on every domain, clients' own models on their own samples.

The task defines the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, nan
from operator import mul
from statistics import fmean, pstdev

from fedml_dapper.datasets import TestData
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.run_folder.records import DeviceScores, PersonalScores, Scores
from fedml_dapper.federation.scoring.devices import measure_devices
from fedml_dapper.federation.scoring.testing import Figures, evaluate
from fedml_dapper.federation.scoring.trained_figures import TrainedFigures
from fedml_dapper.methods import ClientContext, ClientProfile, Memory, ServerState, as_sent
from fedml_dapper.models import Backbone
from fedml_dapper.process.profiling import part
from fedml_dapper.tasks import TOP_1, Metric


@dataclass(frozen=True)
class Measured:
    """Figures of a tested round; see :class:`RoundRecord` for each field, and for when it is None."""

    scores: Scores | None = None
    validation_scores: Scores | None = None
    personal: PersonalScores | None = None
    validation: PersonalScores | None = None
    devices: DeviceScores | None = None


class Scoring:
    """Tests a round's models on test and validation samples, and remembers the best values.

    A domain's figures are those of the global model on its samples. For a method without a global model they are the
    mean over the domain's clients, each with its own model on its own samples.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._method = experiment.method
        self._task = self._method.problem.task
        self._metric = self._task.headline
        self.best = Best()
        self.best_validation = Best()

    @part("evaluation")
    def measure(self, state: ServerState, memories: dict[int, Memory] | None) -> Measured:
        """Test the models of the round just closed.

        Args:
            state: The server's, with the new global model.
            memories: The clients', by client id; None where silos keep them, which then test their own models.
        """
        experiment = self._experiment
        method = self._method
        if experiment.silos_have_own_data and not experiment.tests:
            return Measured()  # silos measure on their own test samples (see of_silos)
        wants_personal = experiment.settings.dapper_args.evaluation.personal
        if memories is not None:
            available = experiment.roster.available
            able = [client for client in experiment.clients if client.client_id in available]
            method.before_tests(state, able, experiment.device)
        test = dict[int, Figures]()
        validation = dict[int, Figures]()
        if memories is not None and (wants_personal or not method.has_global_model):
            test, validation = self._own_figures(state, memories)
        scores = validation_scores = None
        if method.has_global_model:
            model = method.global_model(state)
            scores = self.best.update(self._by_domain(model, experiment.tests), self._metric, self._unseen(state))
            if experiment.validations:
                validation_scores = self.best_validation.update(
                    self._by_domain(model, experiment.validations), self._metric
                )
        elif test:
            scores = self.best.update(self._mean_by_domain(test), self._metric, self._unseen(state))
            if validation:
                validation_scores = self.best_validation.update(self._mean_by_domain(validation), self._metric)
        wants_devices = experiment.settings.dapper_args.evaluation.devices
        of_global = scores.domain_accuracy if method.has_global_model and scores is not None else None
        devices = measure_devices(experiment, state, memories, of_global) if wants_devices else None
        if not wants_personal:
            return Measured(scores, validation_scores, devices=devices)
        tests = experiment.client_tests
        return Measured(
            scores,
            validation_scores,
            _over_clients(test, [own.test for own in tests], self._metric),
            _over_clients(validation, [own.validation for own in tests if own.validation is not None], self._metric),
            devices,
        )

    def of_silos(
        self, own: Mapping[int, Figures], num_tests: Mapping[int, int], profiles: Sequence[ClientProfile]
    ) -> Scores:
        """Return scores from what silos measured on their own test samples.

        Args:
            own: Figures by client id.
            num_tests: Number of test samples by client id, which weigh a silo in means.
            profiles: All clients', in client order.
        """
        by_domain: dict[str, dict[int, Figures]] = {}
        for client_id, figures in sorted(own.items()):
            by_domain.setdefault(profiles[client_id].domain, {})[client_id] = figures
        means = {domain: _weighted(figures, num_tests) for domain, figures in sorted(by_domain.items())}
        return self.best.update(means, self._metric, overall=_weighted(own, num_tests).headline)

    def _own_figures(
        self, state: ServerState, memories: dict[int, Memory]
    ) -> tuple[dict[int, Figures], dict[int, Figures]]:
        """Test every client's own model on its test samples, and on its validation samples where all have some."""
        experiment = self._experiment
        test = dict[int, Figures]()
        validation = dict[int, Figures]()
        as_trained = experiment.settings.dapper_args.evaluation.personal == "trained"
        for client_id, own in enumerate(experiment.client_tests):
            memory = memories.setdefault(client_id, Memory())
            if as_trained and (trained := TrainedFigures.recall(memory)) is not None:
                test[client_id] = trained.test
                if trained.validation is not None:
                    validation[client_id] = trained.validation
                continue
            context = ClientContext(
                profile=state.profiles[client_id],
                data=experiment.clients[client_id],
                memory=memory,
                device=experiment.device,
            )
            downlink = as_sent(self._method.downlink(state, client_id), self._method.problem.layout)
            model = self._method.seeded_personal_model(context, downlink)
            test[client_id] = evaluate(model, self._task, own.test, experiment.device)
            if own.validation is not None:
                validation[client_id] = evaluate(model, self._task, own.validation, experiment.device)
        return test, validation if len(validation) == len(test) else {}

    def _by_domain(self, model: Backbone, samples: Sequence[TestData]) -> dict[str, Figures]:
        return {one.domain: evaluate(model, self._task, one, self._experiment.device) for one in samples}

    def _mean_by_domain(self, own: Mapping[int, Figures]) -> dict[str, Figures]:
        means = {}
        for domain in (test.domain for test in self._experiment.tests):
            members = [own[profile.client_id] for profile in self._experiment.profiles if profile.domain == domain]
            if not members:  # a domain of which no client has anything, and so no model of its own
                continue
            others = {name: fmean(member.others[name] for member in members) for name in members[0].others}
            headlines = [member.headline for member in members]
            losses = [member.loss for member in members]
            means[domain] = Figures(fmean(headlines), fmean(losses), others)
        return means

    def _unseen(self, state: ServerState) -> float | None:
        """Test the method's model for newcomers on the domain that was left out; None without one."""
        unseen = self._experiment.unseen
        device = self._experiment.device
        if unseen is None:
            return None
        model = self._method.adapted_model(state, unseen.data, device)
        return evaluate(model, self._task, unseen.test, device).headline


@dataclass
class Best:
    """The best headlines so far, overall and per domain."""

    overall: float | None = None
    domain: dict[str, float] = field(default_factory=dict)

    def update(
        self,
        figures: Mapping[str, Figures],
        metric: Metric,
        unseen: float | None = None,
        overall: float | None = None,
    ) -> Scores:
        """Take in a round's figures, and return its scores with the best values so far.

        Args:
            figures: Figures by domain.
            metric: The headline's, which says whether more is better.
            unseen: Headline on the domain that was left out.
            overall: Global headline; by default the mean over domains.
        """
        headlines = {domain: value.headline for domain, value in figures.items()}
        mean = fmean(headlines.values()) if overall is None else overall
        self.overall = mean if self.overall is None else metric.best((self.overall, mean))
        of_round = {domain: metric.best((self.domain.get(domain, value), value)) for domain, value in headlines.items()}
        self.domain = self.domain | of_round  # a new one, as a checkpoint may hold the last
        return Scores(
            global_accuracy=mean,
            domain_accuracy=headlines,
            domain_loss={domain: value.loss for domain, value in figures.items()},
            domain_figures={domain: dict(value.others) for domain, value in figures.items() if value.others},
            best_global_accuracy=self.overall,
            best_domain_accuracy=dict(self.domain),
            unseen_accuracy=unseen,
        )


def _weighted(figures: Mapping[int, Figures], weights: Mapping[int, int]) -> Figures:
    counts = [weights[client_id] for client_id in figures]
    headlines = [value.headline for value in figures.values()]
    losses = [value.loss for value in figures.values()]
    return Figures(_weighted_mean(headlines, counts), _weighted_mean(losses, counts))


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return fsum(map(mul, values, weights)) / fsum(weights)  # fmean takes no weights before Python 3.11


def _over_clients(own: Mapping[int, Figures], samples: Sequence[TestData], metric: Metric) -> PersonalScores | None:
    if not own:
        return None
    return summarise([value.headline for value in own.values()], [one.num_samples for one in samples], metric)


def summarise(headlines: Sequence[float], sizes: Sequence[int], metric: Metric = TOP_1) -> PersonalScores:
    """Return the statistics of FDSE and FedCMD over clients' ``headlines``, with ``sizes`` test samples each.

    Where a headline is not finite, as a model's that diverged, the deviation is NaN.
    """
    return PersonalScores(
        overall=_weighted_mean(headlines, sizes),
        average=fmean(headlines),
        worst=metric.worst(headlines),
        deviation=pstdev(headlines) if all(map(isfinite, headlines)) else nan,
        accuracy=tuple(headlines),
    )
