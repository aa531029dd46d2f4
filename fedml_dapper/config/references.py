"""Settings that may name a user's own object: ``path/to/file.py:Name`` or ``package.module:Name``.

Names come from local settings alone, never from a message: a peer describes its code by a name and a digest of its
source, which are compared and not loaded.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedml_dapper.config.settings import Settings

ENTRY_POINTS: Mapping[str, str] = {
    "dapper_args.method": "fedml_dapper.methods",
    "data_args.dataset": "fedml_dapper.datasets",
    "data_args.partition": "fedml_dapper.partitions",
    "dapper_args.levels.assignment": "fedml_dapper.level_rules",
    "model_args.model": "fedml_dapper.models",
    "train_args.task": "fedml_dapper.tasks",
}
"""Settings that may be references, by dotted key, and the entry points in which packages offer the same."""

LIBRARIES = ("torchvision", "timm")
"""Prefixes of networks from a library's own list, as in ``torchvision:resnet50``, which are no modules."""

_FILES = ("model_args.weights",)
"""Settings that name a file whose content counts, by dotted key."""
_FOLDERS = ("data_args.data_cache_dir",)
"""Settings that name a folder, by dotted key."""
_PROFILE = ".yaml"
_DIGITS = 12


@dataclass(frozen=True)
class Reference:
    """A name in a file or in a module that can be imported."""

    place: str
    """The file's path, or the module's dotted name."""
    name: str

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """Read ``text`` as a reference; None for a plain name."""
        place, colon, name = text.rpartition(":")
        return cls(place, name) if colon and place and place not in LIBRARIES and name.isidentifier() else None

    @property
    def file(self) -> Path | None:
        """The file, if a file is named rather than a module."""
        return Path(self.place) if self.place.endswith(".py") else None

    @property
    def source(self) -> Path | None:
        """The file that holds the code; None where it cannot be found."""
        if self.file is not None:
            return self.file if self.file.is_file() else None
        spec = _spec(self.place)
        return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def with_digest(self) -> str:
        """The reference as on any machine: without folders, with a digest of its source."""
        source = self.source
        digest = "not found" if source is None else digest_of(source.read_bytes())
        place = self.place if self.file is None else self.file.name
        return f"{place}:{self.name} (source {digest})"


def _spec(module: str) -> ModuleSpec | None:
    """Return where ``module`` is; None where it is not found.

    Unlike ``importlib.util.find_spec`` it imports no package on the way, whose code would run, since the name may be a
    stranger's.
    """
    package, _, _ = module.rpartition(".")
    try:
        if not package or module in sys.modules:
            return importlib.util.find_spec(module)
        above = _spec(package)
        if above is None or above.submodule_search_locations is None:
            return None
        places = list(above.submodule_search_locations)
    except (ImportError, ValueError):
        return None
    try:
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]  # as importlib does
        found = (finder.find_spec(module, places, None) for finder in finders)
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a folder without an __init__.py in another, whose places Python takes from an import
        spec = ModuleSpec(module, None, is_package=True)
        spec.submodule_search_locations = [str(Path(place) / module.rpartition(".")[2]) for place in places]
        return spec
    except (ImportError, ValueError):
        return None


def digest_of(content: bytes) -> str:
    """Return a short digest that tells contents apart."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def short_name(value: str | None) -> str:
    """Return a short name for what a setting names, fit for a folder; ``program`` for what a program passes instead.

    A reference goes without its place, unless its name is just ``load``: ``my_data.py:load`` is ``my_data``.
    """
    if value is None:
        return "program"
    reference = Reference.parse(value)
    if reference is None:
        return value
    if reference.name != "load":
        return reference.name
    return reference.file.stem if reference.file is not None else reference.place.rpartition(".")[2]


def installed(group: str) -> Mapping[str, Reference]:
    """Return what installed packages offer as entry points of ``group``, by name."""
    return _installed(group, tuple(sys.path))


@cache
def _installed(group: str, path: tuple[str, ...]) -> dict[str, Reference]:
    found = {point.name: Reference.parse(point.value) for point in _offered(path).select(group=group)}
    return {name: reference for name, reference in found.items() if reference is not None}


@cache
def _offered(path: tuple[str, ...]) -> Any:  # before Python 3.12 it is of another class
    """All entry points of all installed packages, whose files are read once for all groups."""
    del path  # only a key of the cache: the packages depend on it
    return entry_points()


def references(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield dotted key and value of every setting that may be a reference and has a value."""
    for key in ENTRY_POINTS:
        value = _value(settings, key)
        if isinstance(value, str):
            yield key, value


def _value(settings: Settings, key: str) -> Any:
    value: Any = settings
    for step in key.split("."):
        value = getattr(value, step)
    return value


def sources(settings: Settings) -> dict[str, str]:
    """Return, for every setting that names something outside of this package, the object and a digest of its source.

    Two processes run the same code if these are equal; the name alone does not say so.
    """
    named = {}
    for key, value in references(settings):
        reference = Reference.parse(value) or installed(ENTRY_POINTS[key]).get(value)
        if reference is not None:
            named[key] = reference.with_digest
    for key in _FILES:
        file = _value(settings, key)
        if file is not None:
            named[key] = _with_content(file)
    fleet = settings.dapper_args.fleet
    if fleet is not None and any(name.endswith(_PROFILE) for name in fleet.names):
        places = fleet.devices if isinstance(fleet.devices, dict) else dict(enumerate(fleet.names))
        named["dapper_args.fleet.devices"] = "; ".join(f"{place}: {_profile(name)}" for place, name in places.items())
    if fleet is not None and fleet.network is not None and fleet.network.endswith(_PROFILE):
        named["dapper_args.fleet.network"] = _profile(fleet.network)
    return named


def _profile(name: str) -> str:
    """Describe a fleet's profile as on any machine."""
    return _with_content(Path(name)) if name.endswith(_PROFILE) else name


def _with_content(file: Path) -> str:
    """Describe a file without folders, with a digest of its content."""
    return f"{file.name} (content {digest_of(file.read_bytes()) if file.is_file() else 'not found'})"


def with_places_of(settings: Settings, other: Settings) -> Settings:
    """Return ``settings`` in which own code, weights and data lie where they do for ``other``, as on another machine.

    Whether it is the same code and weights, :func:`sources` tells.
    """
    named = ((key, Reference.parse(value)) for key, value in references(other))
    places = {key: str(own) for key, own in named if own is not None and own.file is not None}
    places |= {key: str(found) for key in (*_FILES, *_FOLDERS) if (found := _value(other, key)) is not None}
    return Settings.model_validate(named_by_source(settings.model_dump(mode="json"), places))


def named_by_source(values: dict[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    """Return dumped settings in which references, whose paths are of one machine, are replaced by ``named``."""
    replaced = copy.deepcopy(values)
    for key, source in named.items():
        *sections, last = key.split(".")
        place = replaced
        for section in sections:
            place = place[section]
        place[last] = source
    return replaced
