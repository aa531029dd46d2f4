"""What devices of each capability level get from a variant: accuracies of their models, in the rounds that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedml_dapper.benches.measures import HonestReading
from fedml_dapper.benches.results import FinishedCell, VariantResults
from fedml_dapper.benches.statistics import Estimate, estimate
from fedml_dapper.federation.run_folder.records import DeviceFigures, DeviceScores, Record


class DeviceRow(Record):
    """The models that devices of each level run, on every domain, in the rounds of the honest table."""

    label: str
    sent: dict[int, Estimate]
    """Capability level -> mean over domains, over seeds. Levels without a model are missing."""
    own_statistics: dict[int, Estimate]
    """Results with BatchNorm's statistics of a device's own images; empty where the model has none."""
    worst: Estimate | None = None
    """The client that is served worst, with its level's model on its own domain; None where some have no model."""


def device_row(variant: VariantResults, reading: HonestReading, key: str) -> DeviceRow | None:
    """Return the row of a variant; None where its devices' models were not measured.

    Of several rounds the mean is taken within a seed, as for the accuracies beside it: models of one round against
    models of five would differ by chance alone. ``key`` is the headline column's, whose rounds are read.
    """
    by_seed = [scores for cell in variant.cells.values() if (scores := _read(cell, reading, key))]
    if not by_seed:
        return None
    sent = [[one.sent for one in scores] for scores in by_seed]
    own = [[one.own_statistics for one in scores if one.own_statistics is not None] for scores in by_seed]
    worst = [fmean(found) for figures in sent if (found := [one.worst for one in figures if one.worst is not None])]
    return DeviceRow(
        label=variant.label,
        sent=_estimates([_by_level(figures) for figures in sent]),
        own_statistics=_estimates([_by_level(figures) for figures in own]),
        worst=estimate(worst) if worst else None,
    )


def _read(cell: FinishedCell, reading: HonestReading, key: str) -> list[DeviceScores]:
    return [record.devices for record in reading.rounds(cell, key) if record.devices is not None]


def _by_level(figures: Sequence[DeviceFigures]) -> dict[int, float]:
    """Capability level -> mean over rounds."""
    found: dict[int, list[float]] = {}
    for each in figures:
        for level in each.levels:
            if level.accuracy is not None:
                found.setdefault(level.level, []).append(level.accuracy)
    return {level: fmean(values) for level, values in found.items()}


def _estimates(by_seed: Sequence[Mapping[int, float]]) -> dict[int, Estimate]:
    levels = sorted({level for found in by_seed for level in found})
    return {level: estimate([found[level] for found in by_seed if level in found]) for level in levels}
