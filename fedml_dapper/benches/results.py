"""Results of a bench's folder: what each variant reached with each seed, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from fedml_dapper.benches.cell import is_finished
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME, Diagnosis
from fedml_dapper.benches.grid import Bench, Manifest, Variant
from fedml_dapper.benches.pairing import Trained, on_other_data
from fedml_dapper.datasets.suites import PUBLISHED
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation import RunSummary, summarise
from fedml_dapper.federation import LEDGER_NAME, RoundRecord, RunRecord, read_ledger
from fedml_dapper.files import xz
from fedml_dapper.files.regular_file import read_regular

MANIFEST_NAME = "bench.json"
_MAX_MANIFEST = 64 << 20
CELLS_NAME = "cells"
"""Folder with the cells of all benches of a store, beside the benches' folders."""


@dataclass(frozen=True)
class FinishedCell:
    """A run that finished all its rounds."""

    seed: int
    folder: str
    run: RunRecord
    rounds: tuple[RoundRecord, ...]
    summary: RunSummary
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class OpenCell:
    """A cell that no table may use yet, or with care alone, and the reason."""

    variant: str
    seed: int
    problem: str


@dataclass(frozen=True)
class VariantResults:
    """One variant's finished cells by seed; there may be none."""

    variant: Variant
    planned: tuple[int, ...]
    """Planned seeds."""
    cells: Mapping[int, FinishedCell]

    @property
    def label(self) -> str:
        return self.variant.label


@dataclass(frozen=True)
class BenchResults:
    """Everything a bench's report is written from."""

    folder: Path
    manifest: Manifest
    variants: tuple[VariantResults, ...]
    """Variants in the bench's order."""
    open: tuple[OpenCell, ...]
    undiagnosed: tuple[OpenCell, ...]
    """Finished cells whose final model has no diagnosis; the tables include them."""

    @property
    def bench(self) -> Bench:
        return self.manifest.bench

    @property
    def finished(self) -> tuple[VariantResults, ...]:
        """Variants with at least one finished cell."""
        return tuple(results for results in self.variants if results.cells)

    @property
    def cells(self) -> tuple[FinishedCell, ...]:
        return tuple(cell for results in self.variants for cell in results.cells.values())

    @property
    def reference(self) -> VariantResults:
        return self[self.bench.reference]

    def __getitem__(self, label: str) -> VariantResults:
        return next(results for results in self.variants if results.label == label)

    @property
    def data_label(self) -> str:
        """The data as the runs name them, "(subset)" included; empty while no cell is finished."""
        return ", ".join(dict.fromkeys(cell.run.suite for cell in self.cells))

    @property
    def rounds(self) -> str:
        """Rounds of each finished run, e.g. ``20``, or ``20 to 33`` where variants differ."""
        counts = {len(cell.rounds) for cell in self.cells} or {self.manifest.rounds}
        return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))

    def class_name(self, label: int) -> str:
        """Return a class's name from the ledgers, or from the suite where these are of a version without names."""
        run = self.cells[0].run
        published = PUBLISHED.get(run.settings["data_args"]["dataset"])
        names = run.classes or (published.classes if published is not None else ())
        return names[label] if names else str(label)

    @property
    def is_papers(self) -> bool:
        """Whether this is the paper's protocol on the paper's data, with the settings that the bench declares.

        Precision does not count; it is shown beside the profile's name.
        """
        manifest = self.manifest
        return manifest.profile == "paper" and not manifest.overrides and "(subset)" not in self.data_label

    @property
    def profile(self) -> str:
        """The profile's name, and the precision unless it is fp32."""
        manifest = self.manifest
        return manifest.profile if manifest.precision == "fp32" else f"{manifest.profile}, {manifest.precision}"

    @property
    def profile_note(self) -> str:
        return self.bench.profiles[self.manifest.profile].note

    @property
    def level_ratios(self) -> dict[int, float | None]:
        """Capability levels and their ratios; None where these differ, as those that were solved for do."""
        found: dict[int, set[float]] = {}
        for cell in self.cells:
            for footprint in cell.run.footprints:
                found.setdefault(footprint.level, set()).add(footprint.ratio)
        return {level: min(ratios) if len(ratios) == 1 else None for level, ratios in sorted(found.items())}

    def counterpart(self, variant: Variant) -> str | None:
        """Return the label of the variant that ``variant`` is compared with, seed by seed; None for a reference itself.

        It is the bench's reference or, where there are several series, the reference's variant at the same place.
        """
        reference = self.reference.variant
        if len({other.series for other in self.bench.variants}) == 1:
            return None if variant.label == reference.label else reference.label
        if variant.series == reference.series:
            return None
        for other in self.bench.variants:
            if (other.series, other.panel, other.x) == (reference.series, variant.panel, variant.x):
                return other.label
        return None


def read_manifest(folder: Path) -> Manifest:
    """Read what the bench in ``folder`` was started as.

    Raises:
        DataError: There is no bench, or its manifest is damaged.
    """
    try:
        return Manifest.model_validate_json(read_regular(folder / MANIFEST_NAME, _MAX_MANIFEST))
    except (OSError, ValidationError) as error:
        raise DataError(f"no bench in {folder.absolute()}: cannot read {MANIFEST_NAME}; run it once more") from error


def has_other_cells(folder: Path, declared: Manifest) -> bool:
    """Whether the bench in ``folder`` has finished cells that ``declared`` does not name.

    Their labels stand in its manifest alone, so a page of what was run needs that one.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return False
    named = {cell.folder for cell in declared.cells}
    others = (cell.folder for cell in read_manifest(folder).cells if cell.folder not in named)
    return any(is_finished(folder.parent / CELLS_NAME / name) for name in others)


def load_results(folder: Path, manifest: Manifest | None = None) -> BenchResults:
    """Read the bench in ``folder`` and its cells' ledgers. Cells that cannot be read, or that trained on other data
    than those they are compared with, count as open, with the reason.

    ``manifest`` is what the bench was started as, which by default the folder says; another command may have started
    it as something else meanwhile.

    Raises:
        DataError: There is no bench.
    """
    manifest = manifest or read_manifest(folder)
    store = folder.parent / CELLS_NAME
    read = {name: _read(store / name) for name in dict.fromkeys(cell.folder for cell in manifest.cells)}
    open_ = []
    undiagnosed = []
    variants = []
    for variant in manifest.bench.variants:
        planned = [cell for cell in manifest.cells if cell.variant == variant.label]
        cells = {}
        for cell in planned:
            found = read[cell.folder]
            if isinstance(found, str):
                open_.append(OpenCell(variant.label, cell.seed, found))
                continue
            diagnosis = _diagnosis(store / cell.folder)
            if isinstance(diagnosis, str):
                undiagnosed.append(OpenCell(variant.label, cell.seed, diagnosis))
            run, rounds = found
            cells[cell.seed] = FinishedCell(
                cell.seed,
                cell.folder,
                run,
                tuple(rounds),
                summarise(run, rounds),
                diagnosis if isinstance(diagnosis, Diagnosis) else None,
            )
        variants.append(VariantResults(variant, tuple(cell.seed for cell in planned), cells))
    finished = [Trained(each.label, seed, cell.run) for each in variants for seed, cell in each.cells.items()]
    wrong = on_other_data(finished, manifest.bench.reference)
    open_ += [OpenCell(variant, seed, reason) for (variant, seed), reason in wrong.items()]
    variants = [
        replace(each, cells={seed: cell for seed, cell in each.cells.items() if (each.label, seed) not in wrong})
        for each in variants
    ]
    return BenchResults(folder, manifest, tuple(variants), tuple(open_), tuple(undiagnosed))


def _read(folder: Path) -> tuple[RunRecord, list[RoundRecord]] | str:
    """A finished run, or the reason why it is not finished."""
    if xz.find(folder / LEDGER_NAME) is None:
        return "not started"
    try:
        run, rounds = read_ledger(folder / LEDGER_NAME)
    except DataError as error:
        return str(error)
    planned = run.settings["train_args"]["comm_round"]
    return (run, rounds) if len(rounds) >= planned else f"{len(rounds)} of {planned} rounds"


def _diagnosis(folder: Path) -> Diagnosis | str:
    if xz.find(folder / DIAGNOSIS_NAME) is None:
        return "no diagnosis"
    try:
        return Diagnosis.load(folder / DIAGNOSIS_NAME)
    except DataError as error:
        return str(error)
