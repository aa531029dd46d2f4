"""Benches as declared grids of variants and seeds over one experiment, each cell a run of its own.

A bench is a YAML file; ``config/benches/table2.yaml`` shows all of its keys. Every cell has complete settings. Two
cells with the same settings are one run, whatever benches they belong to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedml_dapper.benches.choices import Device, ProfileName
from fedml_dapper.config import (
    SHIPPED,
    Precision,
    Section,
    Settings,
    check,
    counted,
    did_you_mean,
    merge,
    named_by_source,
    read_yaml,
    rule,
    short_name,
    sources,
)
from fedml_dapper.config.found_files import Search, with_found_files, with_found_sources
from fedml_dapper.config.level_forms import with_whole_levels
from fedml_dapper.datasets import FOLDER
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.names import check_names
from fedml_dapper.files.listing import listing_digest
from fedml_dapper.fleet import find_device
from fedml_dapper.methods import METHODS
from fedml_dapper.tasks import TOP_1, build_task

Statistic = Literal["global", "personal", "unseen"]

_BENCHES = SHIPPED / "benches"
_SUFFIXES = (".yaml", ".yml")

_NOT_RESULTS: dict[str, Any] = {
    "dapper_args": {"output_dir", "checkpoint_every", "checkpoints_kept"},
    "device_args": {"threads", "workers", "gpu_id"},
    "data_args": {"data_cache_dir"},
}
"""Settings that do not change what a run computes."""
_IN_A_CLONE = "; the package is installed without it, so start this bench at the root of a clone of the repository"
"""Way out where a shipped bench names a file of ``examples/``."""


class Published(Section):
    """A number that a paper prints, in percent; ``std`` is its printed deviation."""

    mean: float
    std: float | None = None


class Variant(Section):
    """One row of a bench's table."""

    label: str
    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    """Sections laid over the experiment's and the method's own file."""
    profiles: dict[ProfileName, dict[str, Any]] = Field(default_factory=dict)
    """Sections for one profile alone, laid over ``settings``."""
    published: dict[str, Published] = Field(default_factory=dict)
    """Published numbers by domain, and ``global``; for personalised benches ``overall`` and ``average``."""
    panel: str | None = None
    """Varied setting of a sweep, which names the axis."""
    series: str | None = None
    """Line of a sweep that this point belongs to."""
    x: float | None = None
    """Place of the point on a sweep's axis."""


class Profile(Section):
    """Size of the cells: the paper's protocol, or the same protocol with less of everything."""

    seeds: tuple[int, ...] = Field(min_length=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    note: str
    """Description of the profile, shown wherever its results are."""


class Gap(Section):
    """Labels of two variants, between which the value of size is measured; methods recover a share of the gap."""

    floor: str
    """Variant with the smallest level's network for all."""
    ceiling: str
    """Variant with full models for all."""


class Bench(Section):
    """One of the papers' tables or figures as a grid."""

    name: str
    title: str
    source: str
    """Reference of the published numbers."""
    experiment: Path
    """An experiment file: one beside the bench's own file, or a shipped one."""
    folders: tuple[Path, ...] = ()
    """Folders of a user's own bench and of those that it extends. Other files are looked for there too."""
    settings: dict[str, Any] = Field(default_factory=dict)
    profiles: dict[ProfileName, Profile]
    variants: tuple[Variant, ...] = Field(min_length=1)
    reference: str
    """Label of the variant that the others are compared with, seed by seed."""
    statistic: Statistic = "global"
    device: str | None = None
    """Device, by the name of its profile, whose time for each level's training the page says."""
    gap: Gap | None = None
    """Variants between which the value of size is measured, if it is."""
    prepare: str | None = None
    """Command that makes the weights which its cells start from, where there are such."""
    entrant: dict[str, Any] = Field(default_factory=dict)
    """Sections laid over the experiment for a method that is added to its rows (:func:`with_entrants`)."""

    @rule
    def _seeds(self) -> Iterator[str]:
        for name, profile in self.profiles.items():
            if len(set(profile.seeds)) < len(profile.seeds):
                yield f"profiles.{name}.seeds: one is there twice"

    @rule
    def _labels(self) -> Iterator[str]:
        labels = [variant.label for variant in self.variants]
        if len(set(labels)) != len(labels):
            yield "two variants have the same label"
        named = {"reference": self.reference}
        if self.gap is not None:
            named |= {"gap.floor": self.gap.floor, "gap.ceiling": self.gap.ceiling}
        for key, label in named.items():
            if label not in labels:
                yield f"{key} `{label}` is none of the variants{did_you_mean(label, labels)}"


@dataclass(frozen=True)
class Cell:
    """One run: a variant with a seed."""

    variant: Variant
    seed: int
    settings: Settings

    @property
    def folder(self) -> str:
        """A name that two cells share if and only if they compute the same.

        It is made of what differs from the defaults, so a new setting of the package renames no older cell.
        """
        return folder_name(self.settings)


def folder_name(settings: Settings) -> str:
    """Return the name of the folder that holds the run of ``settings``."""
    named = sources(settings)
    args = settings.dapper_args
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_RESULTS)
    params = args.params if "dapper_args.method" in named else args.params.get(args.method, {})
    if args.pruning.scope == "auto":  # older cells, which had no such choice, keep their names
        values["dapper_args"]["pruning"].pop("scope")
        values["dapper_args"] = {key: value for key, value in values["dapper_args"].items() if value != {}}
    if args.levels.budgets is not None:
        values["dapper_args"]["levels"].pop("ratios")  # which follow from them, once the run has begun
    values["dapper_args"] = {**values.get("dapper_args", {}), "method": args.method, "params": params}
    if data_of_own := _which_data(settings, named):
        values["data_args"]["data_cache_dir"] = data_of_own
    values = named_by_source(values, named)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
    data = short_name(settings.data_args.dataset)
    method = short_name(args.method)
    return f"{data}-{method}-{digest}-seed{settings.common_args.random_seed}"


def _which_data(settings: Settings, named: Mapping[str, str]) -> str | None:
    """What a folder of a user's own data adds to a cell's name, without the place where it lies; None where the data
    are a suite's, which are the same anywhere."""
    folder = settings.data_args.data_cache_dir
    if folder is None:
        return None
    if settings.data_args.dataset == FOLDER:
        return f"{folder.name} {listing_digest(folder)}" if folder.is_dir() else folder.name
    return folder.name if "data_args.dataset" in named else None  # the user's code may write into it, too


def load_bench(name: str) -> Bench:
    """Return the bench of that name in ``config/benches``, or the one in the file with the path ``name``.

    Raises:
        ConfigError: There is none, or it is malformed.
    """
    path = Path(name)
    if path.suffix not in _SUFFIXES:
        shipped = _shipped(path)
        if shipped is None:
            raise ConfigError(f"no bench `{name}` in {_BENCHES}{did_you_mean(name, bench_names())}")
        path = shipped
    values, files = _extended(path)
    folders = [file.parent.absolute() for file in files if file.parent != _BENCHES]
    return check(Bench, values | {"name": path.stem, "folders": folders}, where=str(path))


def with_entrants(bench: Bench, methods: Sequence[str]) -> Bench:
    """Return ``bench`` with a row more for each of ``methods``, in the settings that it has for entrants.

    Raises:
        ConfigError: There is no such method, or a row of its name is there already.
    """
    entrants = [Variant(label=METHODS.find(one).name, method=one, settings=bench.entrant) for one in methods]
    rows = [*bench.variants, *entrants]
    return check(Bench, bench.model_dump() | {"variants": rows}, where=f"bench {bench.name}")


def _extended(path: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], list[Path]]:
    """The bench file at ``path`` laid over the one that it ``extends``, and so on; and all of these files."""
    if path in above:
        raise ConfigError(f"{above[0]}: extends itself by way of {path.name}; leave one `extends` out")
    values = read_yaml(path)
    if "experiment" in values:
        values["experiment"] = str(_experiment(str(values["experiment"]), path))
    if isinstance(values.get("device"), str) and (path.parent / values["device"]).is_file():
        values["device"] = str(path.parent.absolute() / values["device"])
    files = [path]
    extended = values.pop("extends", None)
    added = values.pop("more_variants", None)
    if extended is not None:
        below, files_below = _extended(_base(str(extended), path), (*above, path))
        values = merge(below, values)
        files += files_below
    if added is not None:
        values["variants"] = _joined(values.get("variants"), added, path)
    return values, files


def _joined(variants: Any, added: Any, path: Path) -> list[Any]:
    if not isinstance(added, list):
        raise ConfigError(f"{path}: more_variants: expected a list, as `variants` is")
    return [*(variants if isinstance(variants, list) else []), *added]


def _base(extended: str, path: Path) -> Path:
    """The bench file that the one at ``path`` extends: one beside it, or a shipped one, by its file or its name."""
    beside = path.parent / extended
    found = beside if beside.is_file() else _shipped(Path(extended))
    if found is None:
        known = did_you_mean(Path(extended).stem, bench_names())
        raise ConfigError(
            f"{path}: extends `{extended}`: no such file in {path.parent.absolute()}, nor a shipped bench{known}"
        )
    return found


def _experiment(named: str, path: Path) -> Path:
    """The experiment file that the bench at ``path`` names: an absolute path, or a shipped one below ``config/``."""
    beside = path.parent.absolute() / named
    if beside.is_file():
        return beside
    if not (SHIPPED / named).is_file():
        known = did_you_mean(named, [file.name for file in SHIPPED.glob("*.yaml")])
        raise ConfigError(
            f"{path}: experiment `{named}`: no such file in {beside.parent}, nor a shipped experiment{known}"
        )
    return Path(named)


def _shipped(named: Path) -> Path | None:
    """The shipped bench of that name, which may have its suffix."""
    path = _BENCHES / named.with_suffix(".yaml")
    return path if len(named.parts) == 1 and path.is_file() else None


def bench_names() -> list[str]:
    """Return the names of the shipped benches."""
    return sorted(path.stem for path in _BENCHES.glob("*.yaml"))


def cells(
    bench: Bench,
    profile: ProfileName,
    *,
    seeds: Sequence[int] | None = None,
    device: Device = "cpu",
    precision: Precision = "fp32",
    threads: int | None = 1,
    overrides: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Return all cells, seed by seed, so that an interrupted queue has every variant with the first seeds.

    Raises:
        ConfigError: The bench lacks the profile, or its device's, or settings or task do not fit.
    """
    if profile not in bench.profiles:
        raise ConfigError(f"bench {bench.name} has no profile `{profile}`{did_you_mean(profile, bench.profiles)}")
    if bench.device is not None:
        find_device(bench.device, f"bench {bench.name}, device")
    machine = {"using_gpu": device == "cuda", "precision": precision, "threads": threads}
    experiment = SHIPPED / bench.experiment
    folders = (*bench.folders, experiment.parent)
    chosen = []
    for seed in seeds or bench.profiles[profile].seeds:
        for variant in bench.variants:
            layers: list[Mapping[str, Any]] = [
                read_yaml(experiment),
                bench.settings,
                _of_method(variant.method),
                bench.profiles[profile].settings,
                {"device_args": machine},
                variant.settings,
                variant.profiles.get(profile, {}),
                overrides or {},
                {"common_args": {"random_seed": seed}},
            ]
            values: dict[str, Any] = {}
            for layer in layers:
                values = merge(values, with_whole_levels(layer))
            where = f"bench {bench.name}, {variant.label}"
            is_as_shipped = not bench.folders and not overrides
            chosen.append(Cell(variant, seed, _checked(values, folders, where, _IN_A_CLONE if is_as_shipped else "")))
            _check_statistic(bench.statistic, chosen[-1].settings, where)
    return chosen


def _check_statistic(statistic: Statistic, settings: Settings, where: str) -> None:
    """Check that the cell measures what the bench's tables are about."""
    evaluation = settings.dapper_args.evaluation
    needed = {
        "personal": ("personal", bool(evaluation.personal)),
        "unseen": ("unseen_domain", evaluation.unseen_domain is not None),
    }
    key, is_there = needed.get(statistic, ("", True))
    if not is_there:
        raise ConfigError(f"{where}: statistic `{statistic}` wants dapper_args.evaluation.{key}")


def _of_method(name: str) -> Mapping[str, Any]:
    """The sections of a method's own file or, for one that has none, such as a user's own, its name alone."""
    file = SHIPPED / "methods" / f"{name}.yaml"
    return read_yaml(file) if file.is_file() else {"dapper_args": {"method": name}}


def _checked(values: dict[str, Any], folders: Sequence[Path], where: str, way_out: str) -> Settings:
    """The settings of a cell, with the files that they name found: all mistakes that need no data are said here.

    ``way_out`` is what the error says to do where such a file is missing.
    """
    search = Search(folders)
    settings = check(Settings, with_found_sources(values, search), where=where)
    weights = settings.model_args.weights  # a missing file is what check_weights tells of, with the way out
    others = settings.model_copy(update={"model_args": settings.model_args.model_copy(update={"weights": None})})
    found = with_found_files(others, search)
    settings = found.model_copy(update={"model_args": found.model_args.model_copy(update={"weights": weights})})
    if search.mistakes:
        raise ConfigError(f"{counted(search.mistakes, where)}{way_out}")
    try:
        check_names(settings, passes_model=False, passes_data=False)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if (headline := build_task(settings.train_args).headline) != TOP_1:
        raise ConfigError(f"{where}: benches compare {TOP_1.title}, and its task goes for {headline.title}")
    return settings


def check_weights(bench: Bench, chosen: Sequence[Cell]) -> None:
    """Check that the weights which cells start from are there: cells' names go by what these hold.

    Raises:
        ConfigError: A file is missing; the message says by which command it is made.
    """
    for cell in chosen:
        weights = cell.settings.model_args.weights
        if weights is not None and not weights.is_file():
            way_out = f"; make it first: {bench.prepare}" if bench.prepare else ""
            raise ConfigError(f"bench {bench.name}, {cell.variant.label}: no weights at {weights.absolute()}{way_out}")


class PlannedCell(Section):
    """Folder of a cell's results."""

    variant: str
    seed: int
    folder: str
    """Name below the store's ``cells/``."""


class Manifest(Section):
    """A bench as it was started: ``bench.json`` in its folder, from which the report is written."""

    bench: Bench
    profile: ProfileName
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings that were changed in every cell, by section; the profile's note does not cover them."""
    precision: Precision = "fp32"
    """Precision of its cells, unless a variant says otherwise."""
    rounds: int
    cells: tuple[PlannedCell, ...]

    @classmethod
    def of(
        cls,
        bench: Bench,
        profile: ProfileName,
        chosen: Sequence[Cell],
        overrides: Mapping[str, Any] | None = None,
        precision: Precision = "fp32",
    ) -> Manifest:
        """Return the manifest of a bench whose cells are ``chosen``."""
        planned = tuple(PlannedCell(variant=c.variant.label, seed=c.seed, folder=c.folder) for c in chosen)
        rounds = max(cell.settings.train_args.comm_round for cell in chosen)
        return cls(
            bench=bench.model_copy(update={"folders": ()}),  # which are of one machine
            profile=profile,
            overrides=dict(overrides or {}),
            precision=precision,
            rounds=rounds,
            cells=planned,
        )
