"""Tables of a bench as plain data, from which the report, the terminal's table and the CSV are written."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from fedml_dapper.benches.fleet_time import TimeRow, shortest_s, time_rows
from fedml_dapper.benches.gap import GapRow, gap_rows
from fedml_dapper.benches.grid import Published, Statistic
from fedml_dapper.benches.levels_served import DeviceRow, device_row
from fedml_dapper.benches.measures import Column, Reading, best, columns, headline, honest
from fedml_dapper.benches.results import BenchResults, FinishedCell, OpenCell, VariantResults
from fedml_dapper.benches.statistics import Estimate, estimate, holm, paired_difference, paired_p
from fedml_dapper.federation import LevelFootprint
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.fleet import find_device


class Entry(Record):
    """One variant in one column. Accuracies are percent Top-1, differences points."""

    values: dict[int, float]
    """Seed -> accuracy."""
    estimate: Estimate
    published: Published | None
    difference: Estimate | None
    """Difference to the variant's counterpart, over the seeds of both."""


class AccuracyRow(Record):
    """One variant. Columns that were not measured are absent."""

    label: str
    panel: str | None
    counterpart: str | None
    same_runs: bool
    """Whether the counterpart's settings are the same, so that there is nothing to compare."""
    planned_seeds: int
    entries: dict[str, Entry]
    adjusted_p: float | None = None
    """p-value of the headline's difference, by Holm's correction for all of the table's. None for one seed."""


class AccuracyTable(Record):
    """Accuracies read by one rule."""

    rule: str
    rows: tuple[AccuracyRow, ...]

    def highest(self, key: str, panel: str | None) -> float | None:
        """Return the highest mean of a column among the panel's rows with the most seeds; None without any."""
        estimates = [row.entries[key].estimate for row in self.rows if row.panel == panel and key in row.entries]
        most = max((estimate.n for estimate in estimates), default=0)
        return max((estimate.mean for estimate in estimates if estimate.n == most), default=None)

    def row(self, label: str) -> AccuracyRow | None:
        return next((row for row in self.rows if row.label == label), None)


class CostRow(Record):
    """Cost of one variant: means over seeds, rounds and clients, and the models of the weakest and strongest client."""

    label: str
    bytes_up: float
    bytes_down: float
    weakest: LevelFootprint
    strongest: LevelFootprint
    seconds: float
    """Time of a client's local round, on the machine that ran the bench."""
    note: str


class LevelRow(Record):
    """The own models of one variant's clients at one capability level, after the last round."""

    label: str
    level: int
    ratio: float
    before: Estimate
    """Mean over the level's clients, over seeds, with the models as they come."""
    after: Estimate
    """Mean over the level's clients, over seeds, after one more local round."""


class NeedsRow(Record):
    """What a round costs a client of each level under one variant, on as many samples in all rows and levels.

    So they differ by what is trained, and not by who has how many samples in which seed.
    """

    label: str
    memory_bytes: dict[int, int]
    """Capability level -> counted peak of training. Levels that do not train are missing."""
    macs: dict[int, float]
    """Capability level -> multiply-accumulates of a round."""
    seconds: dict[int, float]
    """Capability level -> seconds of local training on the bench's device; empty where it names none."""


class SubmodelRow(Record):
    """The slim models that one variant's clients are sent, on the test images of all domains, after the last round."""

    label: str
    levels: dict[int, Estimate]
    """Capability level -> mean over the level's clients, over seeds."""
    average: Estimate
    """Mean over levels, over seeds."""
    worst: Estimate
    """Lowest level, over seeds."""


class Tables(Record):
    """All numbers of a bench."""

    bench: str
    title: str
    source: str
    profile: str
    profile_note: str
    data: str
    statistic: Statistic
    reference: str
    columns: tuple[str, ...]
    headings: tuple[str, ...]
    headline: str
    best: AccuracyTable
    honest: AccuracyTable
    cost: tuple[CostRow, ...]
    levels: tuple[LevelRow, ...]
    """Rows by variant, then by level, of the cells that have a diagnosis."""
    devices: tuple[DeviceRow, ...] = ()
    """Rows of the variants in which device accuracy was measured."""
    device: str | None = None
    """The device that the seconds of ``needs`` are of."""
    needs: tuple[NeedsRow, ...] = ()
    """Rows of the variants whose cells say what a round costs."""
    needs_samples: float | None = None
    """Samples that ``needs`` are of: the mean over all clients of all cells."""
    gap: tuple[GapRow, ...] = ()
    """Rows of a bench with a :class:`Gap`."""
    times: tuple[TimeRow, ...] = ()
    """Rows of a bench whose runs have a fleet's virtual clock."""
    equal_s: float | None = None
    """Virtual seconds of the shortest run, in which all variants are compared."""
    submodels: tuple[SubmodelRow, ...]
    """Rows of the variants whose clients are sent slim models."""
    missing: tuple[OpenCell, ...]
    diverged: tuple[OpenCell, ...] = ()
    """Finished cells in which something was not finite, which are compared all the same."""
    versions: tuple[str, ...]

    @property
    def has_published(self) -> bool:
        return any(entry.published for row in self.best.rows for entry in row.entries.values())

    @property
    def has_one_counterpart(self) -> bool:
        """Whether all are compared with the bench's reference, none with another variant of its series."""
        return {row.counterpart for row in self.best.rows} <= {None, self.reference}


def build_tables(results: BenchResults) -> Tables:
    """Build the tables of the finished cells."""
    shown = columns(results)
    chosen = honest(results)
    bench = results.bench
    column = headline(results.bench.statistic)
    samples = _mean_samples(results)
    read = {variant.label: _by_seed(variant.cells, chosen.read, column.key) for variant in results.finished}
    return Tables(
        bench=bench.name,
        title=bench.title,
        source=bench.source,
        profile=results.profile,
        profile_note=results.profile_note,
        data=results.data_label,
        statistic=bench.statistic,
        reference=bench.reference,
        columns=tuple(column.key for column in shown),
        headings=tuple(column.heading for column in shown),
        headline=column.key,
        best=_accuracies(results, shown, best, "best round on test images"),
        honest=_accuracies(results, shown, chosen.read, chosen.rule),
        cost=tuple(_cost(variant) for variant in results.finished),
        levels=tuple(row for variant in results.finished for row in _levels(variant)),
        devices=tuple(found for variant in results.finished if (found := device_row(variant, chosen, column.key))),
        device=bench.device,
        needs=tuple(needs for variant in results.finished if (needs := _needs(variant, bench.device, samples))),
        needs_samples=samples,
        gap=gap_rows(bench.gap, read) if bench.gap is not None else (),
        times=time_rows(results.finished, [column.key for column in shown]),
        equal_s=shortest_s(results.finished),
        submodels=tuple(row for variant in results.finished if (row := _submodels(variant))),
        missing=results.open,
        diverged=tuple(
            OpenCell(variant.label, seed, cell.summary.not_finite)
            for variant in results.finished
            for seed, cell in variant.cells.items()
            if cell.summary.not_finite
        ),
        versions=tuple(sorted({cell.run.version for cell in results.cells})),
    )


def cost_base(tables: Tables, results: BenchResults) -> CostRow | None:
    """Return the costs of FedAvg, which the others' are compared with, if it is one of the variants."""
    for row in tables.cost:
        if results[row.label].variant.method == "fedavg":
            return row
    return None


def write_csv(path: Path, tables: Tables) -> None:
    """Write a line per table, variant and column: what was measured, what is published, the difference."""
    with written_whole(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("table", "rule", "variant", "column", "seeds", "mean", "std", "low", "high", "published_mean"),
                *("published_std", "counterpart", "pairs", "difference", "difference_low", "difference_high"),
            ]
        )
        for name, table in (("best", tables.best), ("honest", tables.honest)):
            for row in table.rows:
                for key, entry in row.entries.items():
                    published = entry.published
                    writer.writerow(
                        [
                            *(name, table.rule, row.label, key, *_plain(entry.estimate)),
                            *((published.mean, published.std) if published else (None, None)),
                            *(row.counterpart, *_plain(entry.difference, with_std=False)),
                        ]
                    )


def _plain(number: Estimate | None, with_std: bool = True) -> list[float | None]:
    if number is None:
        return [None] * (5 if with_std else 4)
    ends = (number.interval.low, number.interval.high) if number.interval else (None, None)
    return [number.n, number.mean, *([number.std] if with_std else []), *ends]


def _accuracies(results: BenchResults, shown: tuple[Column, ...], read: Reading, rule: str) -> AccuracyTable:
    rows = []
    for variant in results.finished:
        counterpart = results.counterpart(variant.variant)
        other = None if counterpart is None else results[counterpart]
        entries = {}
        for column in shown:
            values = _by_seed(variant.cells, read, column.key)
            if values:
                entries[column.key] = Entry(
                    values=values,
                    estimate=estimate(list(values.values())),
                    published=variant.variant.published.get(column.key),
                    difference=paired_difference(values, _by_seed(other.cells, read, column.key)) if other else None,
                )
        rows.append(
            AccuracyRow(
                label=variant.label,
                panel=variant.variant.panel,
                counterpart=counterpart,
                same_runs=other is not None and _same_runs(variant, other),
                planned_seeds=len(variant.planned),
                entries=entries,
            )
        )
    rows = _with_adjusted_p(rows, shown[0].key, results, read)
    panels = list(dict.fromkeys(row.panel for row in rows))
    rows.sort(key=lambda row: panels.index(row.panel))  # rows that are compared stand together
    return AccuracyTable(rule=rule, rows=tuple(rows))


def _with_adjusted_p(rows: list[AccuracyRow], key: str, results: BenchResults, read: Reading) -> list[AccuracyRow]:
    """Return ``rows`` with the p-values of their differences in a column, corrected for their number."""
    found = dict[str, float]()
    for row in rows:
        if row.counterpart is None or row.same_runs or key not in row.entries:
            continue
        other = _by_seed(results[row.counterpart].cells, read, key)
        p_value = paired_p(row.entries[key].values, other)
        if p_value is not None:
            found[row.label] = p_value
    adjusted = holm(found)
    return [row.model_copy(update={"adjusted_p": adjusted.get(row.label)}) for row in rows]


def _mean_samples(results: BenchResults) -> float | None:
    """Training samples of a client, over all clients of all finished cells; None where no cell is finished."""
    counts = [client.num_samples for cell in results.cells for client in cell.run.clients]
    return fmean(counts) if counts else None


def _needs(variant: VariantResults, device: str | None, samples: float | None) -> NeedsRow | None:
    diagnoses = (cell.diagnosis for cell in variant.cells.values())
    needs = next((each.needs for each in diagnoses if each is not None and each.needs is not None), None)
    if needs is None or samples is None:
        return None
    return NeedsRow(
        label=variant.label,
        memory_bytes={one.demand.level: one.demand.memory_bytes for one in needs.levels},
        macs=needs.macs_on(samples),
        seconds={} if device is None else needs.seconds_on(find_device(device, "device"), samples),
    )


def _by_seed(cells: Mapping[int, FinishedCell], read: Reading, key: str) -> dict[int, float]:
    values = {seed: read(cell, key) for seed, cell in cells.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _same_runs(variant: VariantResults, other: VariantResults) -> bool:
    shared = variant.cells.keys() & other.cells.keys()
    return bool(shared) and all(variant.cells[seed].folder == other.cells[seed].folder for seed in shared)


def _cost(variant: VariantResults) -> CostRow:
    cells = list(variant.cells.values())
    clients = [client for cell in cells for record in cell.rounds for client in record.clients]
    levels = {client.level for client in clients}  # a method may leave the others out
    taken = [footprint for footprint in cells[0].run.footprints if footprint.level in levels]
    return CostRow(
        label=variant.label,
        bytes_up=fmean(client.bytes_up for client in clients),
        bytes_down=fmean(client.bytes_down for client in clients),
        weakest=max(taken, key=lambda footprint: footprint.ratio),
        strongest=min(taken, key=lambda footprint: footprint.ratio),
        seconds=fmean(client.seconds for client in clients),
        note=cells[0].run.cost_note,
    )


def _levels(variant: VariantResults) -> list[LevelRow]:
    diagnoses = [cell.diagnosis for cell in variant.cells.values() if cell.diagnosis is not None]
    ratios = {score.level: score.ratio for diagnosis in diagnoses for score in diagnosis.levels}
    rows = []
    for level, ratio in sorted(ratios.items()):
        clients = [[score for score in diagnosis.levels if score.level == level] for diagnosis in diagnoses]
        by_seed = [scores for scores in clients if scores]
        before = estimate([fmean(score.before for score in scores) for scores in by_seed])
        after = estimate([fmean(score.after for score in scores) for scores in by_seed])
        rows.append(LevelRow(label=variant.label, level=level, ratio=ratio, before=before, after=after))
    return rows


def _submodels(variant: VariantResults) -> SubmodelRow | None:
    by_seed = []
    for cell in variant.cells.values():
        clients: dict[int, list[float]] = {}
        for score in cell.diagnosis.levels if cell.diagnosis else ():
            if score.everywhere is not None:
                clients.setdefault(score.level, []).append(score.everywhere)
        if clients:
            by_seed.append({level: fmean(accuracies) for level, accuracies in clients.items()})
    if not by_seed:
        return None
    return SubmodelRow(
        label=variant.label,
        levels={
            level: estimate([accuracies[level] for accuracies in by_seed if level in accuracies])
            for level in sorted(set().union(*by_seed))
        },
        average=estimate([fmean(accuracies.values()) for accuracies in by_seed]),
        worst=estimate([min(accuracies.values()) for accuracies in by_seed]),
    )
