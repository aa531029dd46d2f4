"""What a bench's variants reach on their fleet's virtual clock: in equal time, and how long until so many percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedml_dapper.benches.measures import in_round
from fedml_dapper.benches.results import FinishedCell, VariantResults
from fedml_dapper.benches.statistics import Estimate, estimate
from fedml_dapper.evaluation.clock_summary import ClockSummary
from fedml_dapper.federation.records import Record


class TimeRow(Record):
    """One variant on the clock; estimates are over seeds. Times are virtual seconds since a run's beginning."""

    label: str
    elapsed_s: Estimate
    """All rounds."""
    joules: Estimate | None
    """Of training in all rounds; None where a device's profile has no watts."""
    waiting: Estimate
    """Share of a round's time in which a client, on average, had nothing to do."""
    reached: dict[float, Estimate]
    """Until the global model first had so many percent, over the seeds with which it had; missing where none did."""
    at_equal_time: dict[str, Estimate]
    """By column: the last accuracy that was tested before the shortest run of the bench ended."""


def shortest_s(variants: Sequence[VariantResults]) -> float | None:
    """Virtual seconds that the shortest run took; None unless all runs have a clock."""
    summaries = [_clock(cell) for variant in variants for cell in variant.cells.values()]
    if not summaries or None in summaries:
        return None
    return min(summary.elapsed_s for summary in summaries if summary is not None)


def time_rows(variants: Sequence[VariantResults], keys: Sequence[str]) -> tuple[TimeRow, ...]:
    """A row for every variant of a bench whose runs all have a clock, with the columns ``keys`` in equal time; else
    none."""
    equal_s = shortest_s(variants)
    return () if equal_s is None else tuple(_row(variant, keys, equal_s) for variant in variants)


def over_time(cell: FinishedCell, key: str) -> Mapping[float, float]:
    """A column's accuracy by virtual seconds, of every tested round."""
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
    in_time = {
        key: [curve[max(before)] for curve in (over_time(cell, key) for cell in cells)
              if (before := [at for at in curve if at <= equal_s])]
        for key in keys
    }  # fmt: skip
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
