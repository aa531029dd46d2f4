"""Sentences that are computed from a bench's numbers; the reference's defeats come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.benches.results import BenchResults
from fedml_dapper.benches.statistics import Estimate
from fedml_dapper.benches.tables import AccuracyRow, Tables, cost_base
from fedml_dapper.evaluation.units import share

_LEVEL = 0.05
"""Largest p-value, after Holm's correction, of a difference that is taken for settled."""


@dataclass(frozen=True)
class _Comparison:
    """The reference's lead over one variant, in points; negative where it is behind."""

    row: AccuracyRow
    lead: Estimate

    @property
    def label(self) -> str:
        return self.row.label


def claims(results: BenchResults, tables: Tables) -> tuple[str, ...]:
    """Return sentences on the headline column, by the honest rule, and on costs, in the order of their importance."""
    comparisons = _comparisons(tables)
    if tables.honest.row(tables.reference) is None:
        return (f"No run of {tables.reference} is finished, so nothing is compared with it yet.",)
    if not comparisons:
        nothing = f"No other variant is finished with a seed of {tables.reference}'s, so nothing is compared yet."
        return (*_divergence(tables), nothing)
    name = _subject(results, comparisons)
    return (
        *_divergence(tables),
        _ranking(name, tables, comparisons),
        _certainty(name, comparisons),
        *_gap(results, tables),
        *_published(name, tables),
        *_optimism(tables),
        *_cost(results, tables),
    )


def _divergence(tables: Tables) -> tuple[str, ...]:
    """What has to be known before all else: runs that became NaN, of which the rounds before it are compared."""
    seeds = dict[str, list[int]]()
    for cell in tables.diverged:
        seeds.setdefault(cell.variant, []).append(cell.seed)
    if not seeds:
        return ()
    named = "; ".join(
        f"{label} (seed{'s' if len(of) > 1 else ''} {', '.join(map(str, of))})" for label, of in seeds.items()
    )
    return (f"NOT FINITE at some time, and compared all the same by the rounds that were: {named}.",)


def _comparisons(tables: Tables) -> list[_Comparison]:
    found = []
    for row in tables.honest.rows:
        entry = row.entries.get(tables.headline)
        if entry is not None and entry.difference is not None and not row.same_runs:
            found.append(_Comparison(row, _negative(entry.difference)))
    return found


def _negative(difference: Estimate) -> Estimate:
    interval = difference.interval
    turned = interval and interval.model_copy(update={"low": -interval.high, "high": -interval.low})
    return difference.model_copy(update={"mean": -difference.mean, "interval": turned})


def _ranking(name: str, tables: Tables, comparisons: Sequence[_Comparison]) -> str:
    others = _others(tables, comparisons)
    count = len(comparisons)
    ahead = sum(comparison.lead.mean > 0 for comparison in comparisons)
    behind = [comparison for comparison in comparisons if comparison.lead.mean < 0]
    if not behind and not ahead:
        return f"{name} is level with {others if count > 1 else 'the only other'} on the mean over seeds."
    if not behind:
        rest = "" if ahead == count else " and level with the rest"
        return f"{name} is ahead of {_part(ahead, count)} {others} on the mean over seeds{rest}."
    worst = min(behind, key=lambda comparison: comparison.lead.mean)
    most = f"{'most behind ' if len(behind) > 1 else ''}{worst.label} ({-worst.lead.mean:.1f} points)"
    if not ahead:
        return f"{name} is not ahead: on the mean over seeds it is behind {_part(len(behind), count)} {others}, {most}."
    return (
        f"{name} is not ahead of all others: on the mean over seeds it is behind {len(behind)} of {others}, {most}, and"
        f" ahead of {ahead}."
    )


def _part(part: int, whole: int) -> str:
    return "all" if part == whole > 1 else "the" if part == whole else f"{part} of"


def _subject(results: BenchResults, comparisons: Sequence[_Comparison]) -> str:
    reference = results.reference.variant
    if all(comparison.row.counterpart == reference.label for comparison in comparisons):
        return reference.label
    return reference.series or reference.label


def _others(tables: Tables, comparisons: Sequence[_Comparison]) -> str:
    if all(comparison.row.counterpart == tables.reference for comparison in comparisons):
        return f"{len(comparisons)} others" if len(comparisons) > 1 else "only other"
    return f"{len(comparisons)} results of others under the same conditions"


def _certainty(name: str, comparisons: Sequence[_Comparison]) -> str:
    if all(comparison.lead.interval is None for comparison in comparisons):
        return "With 1 seed there are no intervals: nothing tells these differences from chance."
    clear = [comparison for comparison in comparisons if comparison.lead.is_clear]
    count = len(comparisons)
    if not clear:
        return "No difference's paired 95 % interval excludes 0: all are within what seeds do by chance."
    ahead = "; ".join(comparison.label for comparison in clear if comparison.lead.mean < 0)
    behind = "; ".join(comparison.label for comparison in clear if comparison.lead.mean > 0)
    return (
        f"The paired 95 % interval of the difference excludes 0 for {len(clear)} of {count}."
        + (f" Ahead of {name}: {ahead}." if ahead else "")
        + (f" Behind {name}: {behind}." if behind else "")
        + _after_correction(clear, count)
    )


def _after_correction(clear: Sequence[_Comparison], count: int) -> str:
    """Which of the ``clear`` comparisons are so still when all are corrected for their number, ``count``."""
    if count == 1:
        return ""
    settled = [each.label for each in clear if each.row.adjusted_p is None or each.row.adjusted_p < _LEVEL]
    if not settled:
        return f" Corrected for all {count} comparisons, p is below {_LEVEL:g} for none of them."
    which = "all of these" if len(settled) == len(clear) > 1 else "this one" if len(clear) == 1 else "; ".join(settled)
    rest = "; for the others the seeds do not settle it" if len(settled) < count else ""
    return f" Corrected for all {count} comparisons, p is below {_LEVEL:g} for {which}{rest}."


def _gap(results: BenchResults, tables: Tables) -> tuple[str, ...]:
    gap = results.bench.gap
    if gap is None or not tables.gap or tables.gap[0].label != gap.ceiling:
        return ()
    gain = tables.gap[0].gain
    size = gain.mean
    seeds = gain.n
    if gain.interval is not None and not gain.is_clear:
        return (
            f"Size is not shown to pay here: {gap.ceiling} minus {gap.floor} is {size:.1f} points"
            f" ({gain.interval.low:.1f} to {gain.interval.high:.1f}), so shares of it say little.",
        )
    by_one_seed = "" if gain.interval is not None else ", by one seed alone"
    if size <= 0:
        return (f"Size does not pay here: {gap.ceiling} is {-size:.1f} points behind {gap.floor}{by_one_seed}.",)
    shares = [(row.label, row.share) for row in tables.gap if row.share]
    recovered = "; ".join(
        f"{label} {share.mean:.2f}{'' if share.n == seeds else f' ({share.n} of {seeds} seeds)'}"
        for label, share in sorted(shares, key=lambda named: -named[1].mean)
    )
    return (
        f"Size is worth {size:.1f} points here ({gap.ceiling} minus {gap.floor}{by_one_seed})."
        + (f" Of these the others recover, as a share: {recovered}." if recovered else ""),
    )


def _published(name: str, tables: Tables) -> tuple[str, ...]:
    key = tables.headline
    ahead = compared = 0
    for row in tables.best.rows:
        other = row.counterpart and tables.best.row(row.counterpart)
        if not other or row.same_runs or key not in row.entries or key not in other.entries:
            continue
        published = row.entries[key].published
        reference = other.entries[key].published
        if published is not None and reference is not None:
            compared += 1
            ahead += reference.mean > published.mean
    if not compared:
        return ()
    if compared == 1:
        return (f"In the published numbers {name} is {'ahead' if ahead else 'not ahead'} in this one comparison.",)
    return (f"In the published numbers {name} is ahead in {ahead} of these {compared} comparisons.",)


def _optimism(tables: Tables) -> tuple[str, ...]:
    key = tables.headline
    gains = [
        row.entries[key].estimate.mean - honest.entries[key].estimate.mean
        for row in tables.best.rows
        if (honest := tables.honest.row(row.label)) and key in row.entries and key in honest.entries
    ]
    if not gains:
        return ()
    return (
        f"Taking each run's best round on test images instead raises the means by {min(gains):.1f} to {max(gains):.1f}"
        " points: so much comes from choosing on the data that are reported.",
    )


def _cost(results: BenchResults, tables: Tables) -> tuple[str, ...]:
    base = cost_base(tables, results)
    own = next((row for row in tables.cost if row.label == tables.reference), None)
    if base is None or own is None or base.label == own.label or results.reference.variant.panel is not None:
        return ()
    return (
        f"Per round a client of {own.label} sends {share(own.bytes_up, base.bytes_up)} and receives"
        f" {share(own.bytes_down, base.bytes_down)} of {base.label}'s bytes on average; its weakest client trains"
        f" {share(own.weakest.params, base.weakest.params)} of the parameters and"
        f" {share(own.weakest.macs, base.weakest.macs)} of the MACs.",
    )
