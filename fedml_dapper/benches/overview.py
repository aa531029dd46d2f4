"""Overview of a store: which benches have all, some or none of their cells, and an index of all pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.choices import ProfileName
from fedml_dapper.benches.grid import Bench, bench_names, cells, load_bench
from fedml_dapper.benches.results import CELLS_NAME, MANIFEST_NAME, read_manifest
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import write_run_report
from fedml_dapper.evaluation.page import environment, write_page
from fedml_dapper.federation import LEDGER_NAME, REPORT_NAME
from fedml_dapper.federation.run_folder.ledger import count_rounds

INDEX_NAME = "index.html"


@dataclass(frozen=True)
class Standing:
    """Progress of a bench."""

    name: str
    title: str
    finished: int
    set_otherwise: bool
    """Whether settings were changed (``--set``) in cells that are counted."""
    planned: int
    """Number of cells that the bench has as it is declared today."""
    obstacle: str | None = None
    """Reason why its cells are not known here, such as a missing file; no cell is counted then."""

    @property
    def state(self) -> str:
        """State of the bench in a few words."""
        if self.obstacle is not None:
            return "not here"
        if not self.finished:
            return "not run"
        if self.finished < self.planned:
            return "partly"
        return "complete, with other settings" if self.set_otherwise else "complete"


def standing(bench: Bench, profile: ProfileName, store: Path) -> Standing:
    """Return the progress of ``bench`` in ``store``.

    A cell counts as it is declared today, or as it was when the bench was started there, in another precision or with
    other settings.

    Raises:
        ConfigError: Its cells cannot be told here, as a file that they name is missing.
        DataError: What is in the store is damaged.
    """
    declared = {(cell.variant.label, cell.seed): cell.folder for cell in cells(bench, profile)}
    done = {cell for cell, name in declared.items() if _is_finished(store / CELLS_NAME / name)}
    set_otherwise = False
    if (store / bench.name / MANIFEST_NAME).is_file():
        begun = read_manifest(store / bench.name)
        left = (cell for cell in begun.cells if (cell.variant, cell.seed) in declared.keys() - done)
        others = {(cell.variant, cell.seed) for cell in left if _is_finished(store / CELLS_NAME / cell.folder)}
        set_otherwise = bool(others and begun.overrides)
        done |= others
    return Standing(bench.name, bench.title, len(done), set_otherwise, len(declared))


def standings(profile: ProfileName, store: Path) -> list[Standing]:
    """Return the progress of every shipped bench that has ``profile``; one that cannot be had here says why."""
    benches = (load_bench(name) for name in bench_names())
    return [_standing_or_obstacle(bench, profile, store) for bench in benches if profile in bench.profiles]


def _standing_or_obstacle(bench: Bench, profile: ProfileName, store: Path) -> Standing:
    try:
        return standing(bench, profile, store)
    except ConfigError as error:  # one bench that names a file of a clone takes nothing from the others
        return Standing(bench.name, bench.title, 0, set_otherwise=False, planned=0, obstacle=str(error))


@dataclass(frozen=True)
class _Store:
    """A store as the index shows it."""

    name: str
    rows: Sequence[tuple[Standing, str | None]]
    """Benches, and the paths of their pages."""


def holds_results(root: Path) -> bool:
    """Whether there is a bench or a run somewhere below ``root``."""
    return bool(_benches(root) or _runs(root))


def write_reports(root: Path, tell: Callable[[Path], None], *, trust_code: bool = False) -> Path:
    """Write the page of every bench and of every single run below ``root``, and an index of them; return its path.

    A store is a folder with the name of a profile. ``tell`` is called with the path of each page. With ``trust_code``,
    code that the runs name runs though it may not be this user's.
    """
    benches = _benches(root)
    runs = _runs(root)
    for folder in benches:
        tell(write_bench_report(folder))
    for folder in runs:
        tell(write_run_report(folder, trust_code=trust_code))
    stores = {folder.parent for folder in benches}
    of_profiles = [(store, name) for name in get_args(ProfileName) for store in sorted(stores) if store.name == name]
    html = (
        environment("fedml_dapper.benches")
        .get_template("index.html")
        .render(
            stores=[_shown(store, profile, root) for store, profile in of_profiles],
            runs=[_link(folder, root) for folder in runs],
            others=[_link(folder, root) for folder in _of_no_profile(benches)],
        )
    )
    write_page(root / INDEX_NAME, html)
    return root / INDEX_NAME


def _benches(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob(MANIFEST_NAME))


def _runs(root: Path) -> list[Path]:
    """Runs that are no bench's cells."""
    return sorted(path.parent for path in root.rglob(LEDGER_NAME) if CELLS_NAME not in path.relative_to(root).parts)


def _shown(store: Path, profile: ProfileName, root: Path) -> _Store:
    pages = {one: _link(one, root) for one in _benches(store)}
    return _Store(
        str(store.relative_to(root)), [(one, pages.get(store / one.name)) for one in standings(profile, store)]
    )


def _of_no_profile(benches: Iterable[Path]) -> list[Path]:
    """Benches that no store of a profile lists."""
    known = set(bench_names())
    return [one for one in benches if one.parent.name not in get_args(ProfileName) or one.name not in known]


def _link(folder: Path, root: Path) -> str:
    return str((folder / REPORT_NAME).relative_to(root))


def _is_finished(folder: Path) -> bool:
    """Whether a cell's ledger has a line for each of its rounds."""
    run, rounds = count_rounds(folder / LEDGER_NAME)
    return run is not None and rounds >= run.settings["train_args"]["comm_round"]
