"""Loading of experiment files into settings: read, merged, overridden, checked, and with the files they name found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedml_dapper.config.fedml_keys import translated
from fedml_dapper.config.found_files import Search, with_found_files, with_found_sources
from fedml_dapper.config.level_forms import with_whole_levels
from fedml_dapper.config.overrides import apply_overrides
from fedml_dapper.config.paths import check_letters
from fedml_dapper.config.renamed import with_present_names
from fedml_dapper.config.section import Judged, check, counted, with_empty_sections
from fedml_dapper.config.settings import Settings
from fedml_dapper.config.shipped import SHIPPED, experiment_file
from fedml_dapper.config.silo_args import SiloFile
from fedml_dapper.config.yaml_text import MAX_LETTERS, parse_yaml
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import in_place_of_file


@dataclass(frozen=True)
class Loaded:
    """An experiment, as read from its files."""

    settings: Settings
    notes: tuple[str, ...]
    """Messages on what became of FedML's own keys, for whoever runs it."""
    sections: Mapping[str, Any]
    """The values in the files, unchecked, with all of FedML's own keys."""


def load_settings(
    files: Path | str | Sequence[Path | str], overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Settings:
    """Read, merge and check experiment files.

    Args:
        files: Files, merged left to right, so a later one may hold only what differs. A name that is no path is that of
            a shipped file (``quickstart.yaml``, ``methods/fpl.yaml``).
        overrides: ``key=value`` texts, or values by key, applied last. A key is whole (``dapper_args.levels.ratios``)
            or, where only one key ends so, its end (``levels.ratios``, ``ratios``).

    Raises:
        ConfigError: Something is wrong; its one line names where it may stand, files and overrides, and each mistake
            with key and remedy.
    """
    return load_with_notes(files, overrides).settings


def load_with_notes(
    files: Path | str | Sequence[Path | str], overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Loaded:
    """Read, merge and check experiment files as :func:`load_settings`, with messages on FedML's own keys."""
    overrides = overrides if isinstance(overrides, Mapping) else tuple(overrides)
    merged: dict[str, Any] = {}
    found = [experiment_file(file) for file in ([files] if isinstance(files, Path | str) else files)]
    for file in found:
        merged = merge(merged, read_yaml(file))
    misplaced = apply_overrides(merged, overrides)
    translation = translated(merged)
    search = Search([file.parent for file in found])
    judged = Judged(Settings, with_found_sources(translation.values, search))
    settings = None if judged.sound is None else with_found_files(judged.sound, search)
    found_places = {} if settings is None else settings.model_dump(mode="json")
    unwritable = [] if search.mistakes else list(_unwritable(found_places))
    mistakes = [*misplaced, *translation.mistakes, *judged.mistakes, *search.mistakes, *unwritable]
    if len(mistakes) == len(misplaced) == 1:
        raise ConfigError(mistakes[0])  # it names its place by itself
    if mistakes or settings is None:
        raise ConfigError(counted(mistakes, _places(found, overrides)))
    return Loaded(settings, tuple(translation.notes), merged)


def _places(files: Sequence[Path], overrides: tuple[str, ...] | Mapping[str, Any]) -> str:
    """Name where settings come from: a wrong value may be an override's, and its file a right one."""
    places = [str(file) for file in files]
    if overrides:
        places.append("the settings passed" if isinstance(overrides, Mapping) else "--set")
    return ", ".join(places) or "settings"


def read_silo_levels(settings: Settings) -> list[int] | None:
    """Read every client's capability level from ``client_specific_args.data_silo_config``; None where there is none.

    Raises:
        ConfigError: A file is missing or malformed, or ``dapper_args.levels`` lacks a level.
    """
    files = settings.client_specific_args.data_silo_config
    if files is None:
        return None
    levels = [check(SiloFile, read_yaml(file), where=str(file)).silo_args.capability_level for file in files]
    known = len(settings.dapper_args.levels.ratios)
    for file, level in zip(files, levels, strict=True):
        if level > known:
            raise ConfigError(f"{file}: capability_level {level}, but dapper_args.levels.ratios has {known} levels")
    return levels


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the sections of an experiment file, unchecked.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    if found := in_place_of_file(file):
        raise ConfigError(
            f"no config file at {file.absolute()}: that is {found}; write the settings to a plain file, and give that"
        )
    if not file.is_file():
        raise ConfigError(
            f"no config file at {file.absolute()}; the shipped ones are in {SHIPPED}, e.g. quickstart.yaml"
        )
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(MAX_LETTERS + 1)  # one letter more than is allowed, so that longer files are refused
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    content = parse_yaml(text, where=str(file))
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected sections such as `train_args:`, found {type(content).__name__}")
    return with_whole_levels(with_present_names(with_empty_sections(Settings, content)))


def merge(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``above`` laid over it, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _unwritable(value: Any, place: str = "") -> Iterator[str]:
    """Yield what is wrong with each word in dumped settings that is not UTF-8, such as a folder found on the way."""
    if isinstance(value, str):
        try:
            check_letters(value)
        except ValueError as error:
            yield f"{place}: {error}"
    elif isinstance(value, dict | list):
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _unwritable(inside, f"{place}.{key}" if place else str(key))
