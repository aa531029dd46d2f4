"""The value of size: which share of the gap between the smallest network for all and the full one a method recovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedml_dapper.benches.grid import Gap
from fedml_dapper.benches.statistics import Estimate, paired_difference, ratio_of_means
from fedml_dapper.federation.run_folder.records import Record


class GapRow(Record):
    """One variant against both ends of the gap, in the headline column, over the seeds of all three."""

    label: str
    gain: Estimate
    """Points above the smallest network for all."""
    share: Estimate | None
    """Share of the gap: 0 is the smallest network for all, 1 full models for all. None where full models are no better.
    """


def gap_rows(gap: Gap, values: Mapping[str, Mapping[int, float]]) -> tuple[GapRow, ...]:
    """Return a row for each variant of ``values``, accuracies by seed; the ceiling comes first.

    A variant without a seed that both ends have is left out.
    """
    floor = values.get(gap.floor, {})
    ceiling = values.get(gap.ceiling, {})
    labels: Sequence[str] = [gap.ceiling, *(label for label in values if label not in (gap.floor, gap.ceiling))]
    rows = []
    for label in labels:
        own = values.get(label, {})
        seeds = sorted(own.keys() & floor.keys() & ceiling.keys())
        gain = paired_difference({seed: own[seed] for seed in seeds}, floor)
        if gain is None:
            continue
        wholes = [ceiling[seed] - floor[seed] for seed in seeds]
        pays = sum(wholes) > 0
        share = ratio_of_means([own[seed] - floor[seed] for seed in seeds], wholes) if pays else None
        rows.append(GapRow(label=label, gain=gain, share=None if label == gap.ceiling else share))
    return tuple(rows)
