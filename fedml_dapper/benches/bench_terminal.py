"""Result of a bench as a table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fedml_dapper.benches.claims import claims
from fedml_dapper.benches.results import BenchResults
from fedml_dapper.benches.statistics import Estimate
from fedml_dapper.benches.tables import Entry, build_tables
from fedml_dapper.evaluation.units import signed


def terminal_table(results: BenchResults) -> Table:
    """Return the headline accuracy of every variant, by both rules and as published, with differences."""
    tables = build_tables(results)
    heading = f"{tables.title} (profile {tables.profile}; {tables.data or 'no data yet'}), Top-1 accuracy (%)"
    table = Table(title=escape(heading))
    table.add_column("variant")
    reference = tables.reference if tables.has_one_counterpart else "reference"
    for name in ("seeds", tables.honest.rule, f"minus {reference}", tables.best.rule, "published"):
        table.add_column(escape(name), justify="right")
    places = {row.label: place for place, row in enumerate(tables.honest.rows)}
    for variant in sorted(results.variants, key=lambda variant: places.get(variant.label, len(places))):
        row = tables.honest.row(variant.label)
        best = tables.best.row(variant.label)
        entry = row.entries.get(tables.headline) if row else None
        optimistic = best.entries.get(tables.headline) if best else None
        published = variant.variant.published.get(tables.headline)
        table.add_row(
            escape(variant.label),
            f"{len(variant.cells)} of {len(variant.planned)}",
            _accuracy(entry),
            "same runs" if row and row.same_runs else _difference(entry.difference if entry else None),
            _accuracy(optimistic),
            "" if published is None else f"{published.mean:.1f}",
            style="bold" if results.counterpart(variant.variant) is None else None,
        )
    table.caption = escape(" ".join(claims(results, tables)[: 3 if tables.diverged else 2]))
    return table


def _accuracy(entry: Entry | None) -> str:
    if entry is None:
        return "-"
    std = entry.estimate.std
    return f"{entry.estimate.mean:.1f}" + ("" if std is None else f" ± {std:.1f}")


def _difference(difference: Estimate | None) -> str:
    if difference is None:
        return ""
    interval = difference.interval
    ends = "" if interval is None else f" \\[{signed(interval.low)}, {signed(interval.high)}]"
    return f"{signed(difference.mean)}{ends}"
