"""Loading of experiment files and ``key=value`` texts into settings."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from fedml_dapper.config.comm_args import SecureGrpcConfig
from fedml_dapper.config.fedml_keys import translated
from fedml_dapper.config.fleet_args import FleetArgs
from fedml_dapper.config.keys import is_section
from fedml_dapper.config.paths import check_letters, expanded
from fedml_dapper.config.references import ENTRY_POINTS, Reference
from fedml_dapper.config.renamed import RENAMED, present_name, with_present_names
from fedml_dapper.config.section import Judged, check, counted, did_you_mean, with_empty_sections
from fedml_dapper.config.settings import Settings
from fedml_dapper.config.shipped import SHIPPED, experiment_file
from fedml_dapper.config.silo_args import SiloFile
from fedml_dapper.config.yaml_text import MAX_DEPTH, MAX_LETTERS, parse_yaml
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
        ConfigError: Something is wrong; its one line names the files, and each mistake with key and remedy.
    """
    return load_with_notes(files, overrides).settings


def load_with_notes(
    files: Path | str | Sequence[Path | str], overrides: Iterable[str] | Mapping[str, Any] = ()
) -> Loaded:
    """Read, merge and check experiment files as :func:`load_settings`, with messages on FedML's own keys."""
    merged: dict[str, Any] = {}
    found = [experiment_file(file) for file in ([files] if isinstance(files, Path | str) else files)]
    for file in found:
        merged = merge(merged, read_yaml(file))
    misplaced = _apply_overrides(merged, overrides)
    translation = translated(merged)
    search = _Search([file.parent for file in found])
    judged = Judged(Settings, _with_found_sources(translation.values, search))
    settings = None if judged.sound is None else _with_found_files(judged.sound, search)
    found_places = {} if settings is None else settings.model_dump(mode="json")
    unwritable = [] if search.mistakes else list(_unwritable(found_places))
    mistakes = [*misplaced, *translation.mistakes, *judged.mistakes, *search.mistakes, *unwritable]
    if len(mistakes) == len(misplaced) == 1:
        raise ConfigError(mistakes[0])  # it names its place by itself
    if mistakes or settings is None:
        raise ConfigError(counted(mistakes, ", ".join(str(file) for file in found)))
    return Loaded(settings, tuple(translation.notes), merged)


def _apply_overrides(merged: dict[str, Any], overrides: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Put ``overrides`` into ``merged``, and return a line for each that has no place there."""
    mistakes = []
    for override in overrides:
        try:
            if isinstance(overrides, Mapping):
                _put(merged, override, overrides[override], shown=override)
            else:
                parse_override(merged, override)
        except ConfigError as error:
            mistakes.append(str(error))
    return mistakes


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
    return with_present_names(with_empty_sections(Settings, content))


def merge(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``above`` laid over it, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def parse_override(values: dict[str, Any], override: str) -> None:
    """Put ``override``, a ``key=value`` text as in :func:`load_settings`, into ``values``.

    Raises:
        ConfigError: It is no such text, or the key is unknown or ambiguous.
    """
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {override}: expected key=value, e.g. --set train_args.comm_round=20")
    value = parse_yaml(text, where=f"--set {dotted:.60}")
    _put(values, dotted, value, shown=f"--set {dotted}")


def _put(values: dict[str, Any], dotted: str, value: Any, shown: str) -> None:
    """Put ``value`` at the place of a key, whole or without its first sections; errors begin with ``shown``."""
    path = present_name(dotted).split(".")
    if len(path) <= MAX_DEPTH and path[0] not in Settings.model_fields:
        path = _place_of(path, shown)
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{shown:.100}: unknown key; none lies that deep")
    if not value and is_section(_kind_at(path)):  # else it would replace all that files say in that section
        raise ConfigError(f"{shown}: a section, and this leaves nothing in it; name one of its keys, or leave it out")
    place = values
    for key in path[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{shown}: `{key}` is a value, not a section")
    place[path[-1]] = value


def _kind_at(path: Sequence[str]) -> Any:
    """The type of the setting at ``path``; None where no setting lies there."""
    kind: Any = Settings
    for step in path:
        kind = kind.model_fields[step].annotation if is_section(kind) and step in kind.model_fields else None
    return kind


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


class _Search:
    """Looks for files in the working directory and in ``folders``, and collects a mistake for each that is missing."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self.mistakes: list[str] = []

    def find(self, path: Path, key: str, kind: Literal["file", "folder"] = "file", hint: str = "") -> Path:
        """Return ``path`` as an absolute one; unchanged where nothing is there."""
        try:
            path = expanded(path)
        except ValueError as error:
            self.mistakes.append(f"{key}: {error}")
            return path
        found = self.find_if_there(path, kind)
        if found is None:
            places = ", ".join(str(candidate.parent.absolute()) for candidate in self._candidates(path))
            self.mistakes.append(f"{key}: no {kind} {path}{self._instead(path, kind)}; looked in {places}{hint}")
        return found or path

    def find_if_there(self, path: Path, kind: Literal["file", "folder"] = "file") -> Path | None:
        for candidate in self._candidates(path):
            if candidate.is_file() if kind == "file" else candidate.is_dir():
                return candidate.resolve()
        return None

    def _instead(self, path: Path, kind: Literal["file", "folder"]) -> str:
        """Return what is there in place of a file, in brackets; empty where nothing is."""
        found = filter(None, map(in_place_of_file, self._candidates(path) if kind == "file" else ()))
        return next((f" (there is {each} of that name)" for each in found), "")

    def _candidates(self, path: Path) -> list[Path]:
        return list(dict.fromkeys((path, *(folder / path for folder in self._folders))))


def _with_found_sources(values: dict[str, Any], search: _Search) -> dict[str, Any]:
    """Unchecked ``values`` in which ``path/to/file.py:Name`` has an absolute path."""
    found = copy.deepcopy(values)
    for key in ENTRY_POINTS:
        *sections, last = key.split(".")
        place: Any = found
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(last) if isinstance(place, dict) else None
        reference = Reference.parse(value) if isinstance(value, str) else None
        if reference is not None and reference.file is not None:
            place[last] = f"{search.find(reference.file, key)}:{reference.name}"
    return found


def _with_found_files(settings: Settings, search: _Search) -> Settings:
    """Settings with absolute paths of files and folders."""
    comm = settings.comm_args
    silos = settings.client_specific_args
    data = settings.data_args
    model = settings.model_args
    if data.data_cache_dir is not None:  # a missing folder is reported when the data are read
        found = search.find_if_there(data.data_cache_dir, "folder") or data.data_cache_dir
        data = data.model_copy(update={"data_cache_dir": found})
    if model.weights is not None:
        model = model.model_copy(update={"weights": search.find(model.weights, "model_args.weights")})
    if comm.backend == "GRPC" and comm.grpc_ipconfig_path is not None:
        table = search.find(comm.grpc_ipconfig_path, "comm_args.grpc_ipconfig_path")
        comm = comm.model_copy(update={"grpc_ipconfig_path": table})
    if comm.backend == "DAPPER_GRPC" and comm.dapper_grpc is not None:
        grpc = _with_found_credentials(comm.dapper_grpc, search)
        comm = comm.model_copy(update={"dapper_grpc": grpc})
    if silos.data_silo_config is not None:
        files = tuple(search.find(path, "client_specific_args.data_silo_config") for path in silos.data_silo_config)
        silos = silos.model_copy(update={"data_silo_config": files})
    dapper = settings.dapper_args
    if dapper.fleet is not None:
        dapper = dapper.model_copy(update={"fleet": _with_found_profiles(dapper.fleet, search)})
    own = settings.silo_args
    if own.data_cache_dir is not None:
        place = search.find(own.data_cache_dir, "silo_args.data_cache_dir", "folder")
        own = own.model_copy(update={"data_cache_dir": place})
    if own.device is not None and own.device.endswith(".yaml"):
        own = own.model_copy(update={"device": str(search.find(Path(own.device), "silo_args.device"))})
    if own.known is not None:
        own = own.model_copy(update={"known": search.find(own.known, "silo_args.known")})
    found_sections = {"comm_args": comm, "client_specific_args": silos, "silo_args": own, "dapper_args": dapper}
    return settings.model_copy(update={**found_sections, "data_args": data, "model_args": model})


def _with_found_credentials(grpc: SecureGrpcConfig, search: _Search) -> SecureGrpcConfig:
    hint = f". For a trial, `bash run/make_certs.sh {grpc.certificates} NUM_SILOS` makes it (docs/security.md)"
    places = {"certificates": search.find(grpc.certificates, "dapper_grpc.certificates", "folder", hint)}
    if grpc.token_file is not None:
        places["token_file"] = search.find(grpc.token_file, "dapper_grpc.token_file")
    if grpc.members_file is not None:  # silos have none; servers report a missing one
        places["members_file"] = search.find_if_there(grpc.members_file) or grpc.members_file
    return grpc.model_copy(update=places)


def _with_found_profiles(fleet: FleetArgs, search: _Search) -> FleetArgs:
    """The fleet with absolute paths of profiles that are files; names of shipped ones are kept."""

    def find(name: str, key: str) -> str:
        return str(search.find(Path(name), f"dapper_args.fleet.{key}")) if name.endswith(".yaml") else name

    devices = fleet.devices
    if isinstance(devices, dict):
        found: Any = {domain: find(name, "devices") for domain, name in devices.items()}
    else:
        found = None if devices is None else tuple(find(name, "devices") for name in devices)
    network = None if fleet.network is None else find(fleet.network, "network")
    return fleet.model_copy(update={"devices": found, "network": network})


def _place_of(end: list[str], shown: str) -> list[str]:
    """The whole path of the one key that ends so, or of a value within it, as in ``params.moon.mu``."""
    keys = leaves(Settings)
    known = [path for path in (*keys, *(old.split(".") for old in RENAMED)) if path[0] != "silo_args"]  # of the silo
    places: list[list[str]] = []
    inside: list[str] = []
    for length in range(len(end), 0, -1):
        places = [path for path in known if path[-length:] == end[:length]]
        inside = end[length:]
        if places:
            break
    if len(places) == 1:
        return [*present_name(".".join(places[0])).split("."), *inside]
    if not places and len(end) > 1:
        return end  # the caller then reports its first section as unknown
    if not places:
        raise ConfigError(f"{shown}: unknown key{did_you_mean(end[-1], (path[-1] for path in keys))}")
    options = " or ".join(".".join([*path, *inside]) for path in places)
    raise ConfigError(f"{shown}: stands in several sections; write {options}")


def leaves(model: type[BaseModel]) -> list[list[str]]:
    """Return the path of every key below ``model`` that is no section."""
    paths = []
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            paths += [[name, *rest] for rest in leaves(field.annotation)]
        else:
            paths.append([name])
    return paths
