"""Results of a bench's variants on their fleet's virtual clock: in equal time, and time until so many percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedml_dapper.benches.measures import in_round
from fedml_dapper.benches.results import FinishedCell, VariantResults
from fedml_dapper.benches.statistics import Estimate, estimate
from fedml_dapper.evaluation.clock_summary import ClockSummary
from fedml_dapper.federation.run_folder.records import Record


class TimeRow(Record):
    """One variant on the clock; estimates are over seeds. Times are virtual seconds since a run's beginning."""

    label: str
    elapsed_s: Estimate
    """Time of all rounds."""
    joules: Estimate | None
    """Energy of training in all rounds; None where a device's profile has no watts."""
    waiting: Estimate
    """Share of a round's time in which a client, on average, had nothing to do."""
    reached: dict[float, Estimate]
    """Percent -> time until the global model first reached them, over the seeds with which it did; without percent that
    none reached."""
    at_equal_time: dict[str, Estimate]
    """Column -> the last accuracy that was tested before the shortest run of the bench ended."""


def shortest_s(variants: Sequence[VariantResults]) -> float | None:
    """Return the virtual seconds of the shortest run; None unless all runs have a clock."""
    summaries = [_clock(cell) for variant in variants for cell in variant.cells.values()]
    if not summaries or None in summaries:
        return None
    return min(summary.elapsed_s for summary in summaries if summary is not None)


def time_rows(variants: Sequence[VariantResults], keys: Sequence[str]) -> tuple[TimeRow, ...]:
    """Return a row per variant, with the columns ``keys`` in equal time; none unless all runs have a clock."""
    equal_s = shortest_s(variants)
    return () if equal_s is None else tuple(_row(variant, keys, equal_s) for variant in variants)


def over_time(cell: FinishedCell, key: str) -> Mapping[float, float]:
    """Return virtual seconds -> a column's accuracy, for every tested round."""
    found = {}
    for record in cell.rounds:
        value = in_round(record, key)
        if record.clock is not None and value is not None:
            found[record.clock.elapsed_s] = value
    return found


def _row(variant: VariantResults, keys: Sequence[str], equal_s: float) -> TimeRow:
    cells = list(variant.cells.values())
    clocks = [clock for cell in cells if (clock := _clock(cell)) is not None]
    joules = [clock.joules for clock in clocks if clock.joules is not None]
    reached = {
        target: [seconds for clock in clocks if (seconds := clock.reached.get(target)) is not None]
        for target in sorted({target for clock in clocks for target in clock.reached})
    }
    in_time = {}
    for key in keys:
        tested = [(curve, [at for at in curve if at <= equal_s]) for curve in (over_time(cell, key) for cell in cells)]
        in_time[key] = [curve[max(before)] for curve, before in tested if before]
    return TimeRow(
        label=variant.label,
        elapsed_s=estimate([clock.elapsed_s for clock in clocks]),
        joules=estimate(joules) if len(joules) == len(clocks) else None,
        waiting=estimate([clock.waiting for clock in clocks]),
        reached={target: estimate(seconds) for target, seconds in reached.items() if seconds},
        at_equal_time={key: estimate(values) for key, values in in_time.items() if values},
    )


def _clock(cell: FinishedCell) -> ClockSummary | None:
    return cell.summary.clock
