"""Summary of a run in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedml_dapper.evaluation.announced import as_announced
from fedml_dapper.evaluation.clock_summary import ClockSummary, summarise_clock
from fedml_dapper.evaluation.divergence import divergence_over
from fedml_dapper.federation import RoundRecord, RunRecord, Scores
from fedml_dapper.federation.run_folder.records import DeviceFigures, DeviceScores, PersonalScores, Record
from fedml_dapper.metric import Metric

LAST_ROUNDS = 5
"""Tested rounds at the end of a run whose mean is read where no round is chosen."""


class Accuracy(Record):
    """Headline figure, such as accuracy, over the tested rounds of a run; ``RunRecord.metric`` says which."""

    best: float
    """Best over rounds, the papers' statistic. It is chosen on test data, hence optimistic."""
    best_round: int
    """The first round that reached ``best``."""
    last: float
    last_round: int
    """The last tested round."""
    mean_last5: float
    """Mean of the last five tested rounds, or of all while there are fewer."""
    mean_rounds: int
    """Number of rounds in that mean."""


class PersonalSummary(Record):
    """Clients' own models over the rounds in which they were measured (FDSE, FedCMD)."""

    overall: Accuracy
    """ALL: over the union of the clients' test samples."""
    average: Accuracy
    """AVG: mean over the clients."""
    worst: Accuracy
    """The worst client of each round."""
    last: PersonalScores
    chosen_round: int | None
    """The first round that was best on the clients' validation samples (ALL); None where the data have none."""
    chosen: PersonalScores | None
    """Test scores of that round."""
    before_training: float | None
    after_training: float | None
    """Mean over the clients that trained in the last measured round, before and after their local training."""


class DeviceSummary(Record):
    """Models that devices get: those of all levels, each client's on its own domain."""

    accuracy: Accuracy | None
    """Device accuracy over the tested rounds, with the models as sent; None where some devices have no model."""
    own_statistics: Accuracy | None
    """Device accuracy with statistics of the devices' own images; also None where the model has none."""
    last: DeviceScores
    last_round: int


class ChosenRound(Record):
    """The first round that was best on validation samples, and its scores on test samples: an honest selection."""

    round: int
    validation_accuracy: float
    """Unweighted mean over domains, as all global accuracies."""
    global_accuracy: float
    domain_accuracy: dict[str, float]
    unseen_accuracy: float | None
    devices: DeviceScores | None = None
    """What devices got in that round, if it was measured."""


class RunSummary(Record):
    """What a run reached and how long it took. Accuracies are those of the global model."""

    rounds: int
    """Number of finished rounds."""
    tested_rounds: int
    empty_rounds: int = 0
    """Number of rounds that closed without any upload."""
    global_accuracy: Accuracy | None
    """Unweighted mean over domains; None while no round was tested."""
    domain_accuracy: dict[str, Accuracy]
    """Accuracy of each domain alone, so every ``best`` may come from another round; empty while no round was tested."""
    same_round: dict[str, float]
    """Domain -> its accuracy in the round in which the global accuracy was best, for the domains tested in it."""
    chosen: ChosenRound | None = None
    """Selection by validation samples; None where the partition keeps none."""
    unseen_accuracy: Accuracy | None = None
    """Accuracy on the domain that was left out of training, if one was."""
    personal: PersonalSummary | None = None
    devices: DeviceSummary | None = None
    """Models that devices get; None where they were not measured."""
    clock: ClockSummary | None = None
    """Virtual time; None without a virtual clock."""
    seconds: float
    """Sum over the finished rounds."""
    not_finite: str | None = None
    """Sentences on what is NaN or infinite, so that accuracies may mean nothing, and on what helps; None where all is
    sound."""


def summarise(run: RunRecord, rounds: Sequence[RoundRecord]) -> RunSummary:
    """Summarise the rounds so far, which may be fewer than planned, or none."""
    run = as_announced(run, rounds)
    tested = {record.round: record.scores for record in rounds if record.scores is not None}
    by_domain = {domain: _of_domain(tested, domain) for domain in run.domains}
    overall = None
    if tested:
        overall = _accuracy({number: scores.global_accuracy for number, scores in tested.items()}, run.metric)
    unseen = {number: scores.unseen_accuracy for number, scores in tested.items() if scores.unseen_accuracy is not None}
    return RunSummary(
        rounds=len(rounds),
        tested_rounds=len(tested),
        empty_rounds=sum(record.is_empty for record in rounds),
        global_accuracy=overall,
        domain_accuracy={domain: _accuracy(found, run.metric) for domain, found in by_domain.items() if found},
        same_round=dict(tested[overall.best_round].domain_accuracy) if overall else {},
        chosen=_choose(rounds, run.metric),
        unseen_accuracy=_accuracy(unseen, run.metric) if unseen else None,
        personal=_personal(rounds, run.metric),
        devices=_devices(rounds, run.metric),
        clock=summarise_clock(run, rounds),
        seconds=sum(record.seconds.total for record in rounds),
        not_finite=divergence_over(run, rounds),
    )


def _of_domain(tested: dict[int, Scores], domain: str) -> dict[int, float]:
    """Round -> accuracy of a domain; a silo that was away leaves its domain untested."""
    return {n: scores.domain_accuracy[domain] for n, scores in tested.items() if domain in scores.domain_accuracy}


def _choose(rounds: Sequence[RoundRecord], metric: Metric) -> ChosenRound | None:
    candidates = [(r, r.validation_scores, r.scores) for r in rounds if r.validation_scores and r.scores]
    if not candidates:
        return None
    record, validation, scores = max(candidates, key=lambda candidate: metric.merit(candidate[1].global_accuracy))
    return ChosenRound(
        round=record.round,
        validation_accuracy=validation.global_accuracy,
        global_accuracy=scores.global_accuracy,
        domain_accuracy=scores.domain_accuracy,
        unseen_accuracy=scores.unseen_accuracy,
        devices=record.devices,
    )


def _devices(rounds: Sequence[RoundRecord], metric: Metric) -> DeviceSummary | None:
    measured = {record.round: record.devices for record in rounds if record.devices is not None}
    if not measured:
        return None
    number, last = next(reversed(measured.items()))
    return DeviceSummary(
        accuracy=_over_rounds({round_: scores.sent for round_, scores in measured.items()}, metric),
        own_statistics=_over_rounds({round_: scores.own_statistics for round_, scores in measured.items()}, metric),
        last=last,
        last_round=number,
    )


def _over_rounds(figures: Mapping[int, DeviceFigures | None], metric: Metric) -> Accuracy | None:
    known = {number: found.accuracy for number, found in figures.items() if found and found.accuracy is not None}
    return _accuracy(known, metric) if known else None


def _personal(rounds: Sequence[RoundRecord], metric: Metric) -> PersonalSummary | None:
    measured = {record.round: record for record in rounds if record.personal is not None}
    scores = {number: record.personal for number, record in measured.items() if record.personal is not None}
    if not scores:
        return None
    validated = {number: record.validation.overall for number, record in measured.items() if record.validation}
    chosen = max(validated, key=lambda number: metric.merit(validated[number])) if validated else None
    trained = measured[max(measured)].clients
    before = [client.accuracy_before for client in trained if client.accuracy_before is not None]
    after = [client.accuracy_after for client in trained if client.accuracy_after is not None]
    return PersonalSummary(
        overall=_accuracy({number: personal.overall for number, personal in scores.items()}, metric),
        average=_accuracy({number: personal.average for number, personal in scores.items()}, metric),
        worst=_accuracy({number: personal.worst for number, personal in scores.items()}, metric),
        last=scores[max(scores)],
        chosen_round=chosen,
        chosen=None if chosen is None else scores[chosen],
        before_training=fmean(before) if before else None,
        after_training=fmean(after) if after else None,
    )


def _accuracy(by_round: dict[int, float], metric: Metric) -> Accuracy:
    best_round = max(by_round, key=lambda number: metric.merit(by_round[number]))
    last_round = max(by_round)
    latest = sorted(by_round)[-LAST_ROUNDS:]
    return Accuracy(
        best=by_round[best_round],
        best_round=best_round,
        last=by_round[last_round],
        last_round=last_round,
        mean_last5=fmean(by_round[number] for number in latest),
        mean_rounds=len(latest),
    )
