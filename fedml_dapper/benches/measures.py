"""Accuracies that a bench is about, and the rules by which a round is chosen to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedml_dapper.benches.grid import Statistic
from fedml_dapper.benches.results import BenchResults, FinishedCell
from fedml_dapper.evaluation import LAST_ROUNDS, Accuracy, RunSummary
from fedml_dapper.federation import RoundRecord
from fedml_dapper.federation.run_folder.records import DeviceScores


@dataclass(frozen=True)
class Column:
    """One accuracy of a run; published values have the same ``key``."""

    key: str
    heading: str


_PERSONAL = (Column("average", "AVG"), Column("overall", "ALL"), Column("worst", "worst client"))
_GLOBAL = Column("global", "global")
_UNSEEN = Column("unseen", "unseen domain")
_DEVICES = (Column("devices", "devices"), Column("devices, own statistics", "devices, own statistics"))
"""Mean over clients, each with its level's model on its own domain."""


def columns(results: BenchResults) -> tuple[Column, ...]:
    """Return the columns of the bench's tables, the headline first."""
    if results.bench.statistic == "personal":
        return _PERSONAL
    if results.bench.statistic == "unseen":
        return (_UNSEEN, Column("global", "seen domains"))
    domains = dict.fromkeys(domain for cell in results.cells for domain in cell.run.domains)
    of_devices = (column for column in _DEVICES if any(best(cell, column.key) is not None for cell in results.cells))
    return (_GLOBAL, *of_devices, *(Column(domain, domain) for domain in domains))


def headline(statistic: Statistic) -> Column:
    """Return the column that claims and figures are about."""
    return {"global": _GLOBAL, "personal": _PERSONAL[0], "unseen": _UNSEEN}[statistic]


Reading = Callable[[FinishedCell, str], "float | None"]
"""Function that returns a cell's accuracy in a column, in percent; None where it was not measured."""
RoundsRead = Callable[[FinishedCell, str], "tuple[RoundRecord, ...]"]
"""Function that returns the rounds of a cell in which a column's accuracy is read; empty where there is none."""


def best(cell: FinishedCell, key: str) -> float | None:
    """Return the maximum over rounds, every column in a round of its own."""
    accuracy = _accuracy(cell.summary, key)
    return None if accuracy is None else accuracy.best


def by_validation(cell: FinishedCell, key: str) -> float | None:
    """Return the accuracy in the round that was best on validation samples, the same round for all columns."""
    if key in _fields(_PERSONAL):
        personal = cell.summary.personal
        return None if personal is None or personal.chosen is None else float(getattr(personal.chosen, key))
    chosen = cell.summary.chosen
    if chosen is None:
        return None
    if key == "unseen":
        return chosen.unseen_accuracy
    if key in _fields(_DEVICES):
        return _of_devices(chosen.devices, key)
    return chosen.global_accuracy if key == "global" else chosen.domain_accuracy.get(key)


def last_five(cell: FinishedCell, key: str) -> float | None:
    """Return the mean of the last five tested rounds."""
    accuracy = _accuracy(cell.summary, key)
    return None if accuracy is None else accuracy.mean_last5


def _chosen_round(cell: FinishedCell, key: str) -> tuple[RoundRecord, ...]:
    personal = cell.summary.personal
    if key in _fields(_PERSONAL):
        number = None if personal is None else personal.chosen_round
    else:
        number = None if cell.summary.chosen is None else cell.summary.chosen.round
    return tuple(record for record in cell.rounds if record.round == number)


def _last_rounds(cell: FinishedCell, key: str) -> tuple[RoundRecord, ...]:
    tested = [record for record in cell.rounds if in_round(record, key) is not None]
    return tuple(tested[-LAST_ROUNDS:])


@dataclass(frozen=True)
class HonestReading:
    """A rule that chooses rounds without looking at test images."""

    read: Reading
    rounds: RoundsRead
    rule: str
    explanation: str


_VALIDATION = HonestReading(
    by_validation,
    _chosen_round,
    "round chosen on validation images",
    "For every run the round that was best on validation images, which are neither trained on nor tested on; all"
    " columns are that round's test accuracies.",
)
_LAST_FIVE = HonestReading(
    last_five,
    _last_rounds,
    "mean of the last five tested rounds",
    "Not every run has validation images that a round could be chosen on, so nothing is chosen: the mean of each run's"
    " last five tested rounds.",
)


def honest(results: BenchResults) -> HonestReading:
    """Return the rule for all variants: by validation samples if every run that was measured at all has them."""
    key = headline(results.bench.statistic).key
    measured = [cell for cell in results.cells if best(cell, key) is not None]
    return _VALIDATION if all(by_validation(cell, key) is not None for cell in measured) else _LAST_FIVE


def in_round(record: RoundRecord, key: str) -> float | None:
    """Return a column's accuracy in one round; None where it was not measured."""
    if key in _fields(_PERSONAL):
        return None if record.personal is None else float(getattr(record.personal, key))
    if key in _fields(_DEVICES):
        return _of_devices(record.devices, key)
    if record.scores is None:
        return None
    if key == "unseen":
        return record.scores.unseen_accuracy
    return record.scores.global_accuracy if key == "global" else record.scores.domain_accuracy.get(key)


def _accuracy(summary: RunSummary, key: str) -> Accuracy | None:
    if key in _fields(_PERSONAL):
        personal = summary.personal
        if personal is None:
            return None
        return {"overall": personal.overall, "average": personal.average, "worst": personal.worst}[key]
    if key == "unseen":
        return summary.unseen_accuracy
    if key in _fields(_DEVICES):
        devices = summary.devices
        if devices is None:
            return None
        return devices.accuracy if key == _DEVICES[0].key else devices.own_statistics
    return summary.global_accuracy if key == "global" else summary.domain_accuracy.get(key)


def _of_devices(scores: DeviceScores | None, key: str) -> float | None:
    if scores is None:
        return None
    figures = scores.sent if key == _DEVICES[0].key else scores.own_statistics
    return None if figures is None else figures.accuracy


def _fields(group: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.key for column in group)
