"""Single settings laid over those of files: ``key=value`` texts, as after ``--set``, and values by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedml_dapper.config.dapper_args import DapperArgs
from fedml_dapper.config.fedml_meanings import fedml_paths
from fedml_dapper.config.keys import is_section
from fedml_dapper.config.renamed import RENAMED, present_name
from fedml_dapper.config.section import closest
from fedml_dapper.config.settings import Settings
from fedml_dapper.config.yaml_text import MAX_DEPTH, parse_yaml
from fedml_dapper.errors import ConfigError, shortened

_LONGEST_KEY = 60


def apply_overrides(merged: dict[str, Any], overrides: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Put ``overrides`` into ``merged``, and return a line for each that has no place there."""
    mistakes = []
    for override in overrides:
        try:
            if isinstance(overrides, Mapping):
                _put(merged, _word(override), overrides[override], shown=shortened(override, _LONGEST_KEY))
            else:
                parse_override(merged, _word(override))
        except ConfigError as error:
            mistakes.append(str(error))
    return mistakes


def _word(override: object) -> str:
    """Return the ``override`` of a program if it is a word; raise :class:`ConfigError` otherwise."""
    if not isinstance(override, str):
        raise ConfigError(f"{override!r:.60}: a setting is called by a word, e.g. train_args.comm_round")
    return override


def parse_override(values: dict[str, Any], override: str) -> None:
    """Put ``override``, a ``key=value`` text as in :func:`fedml_dapper.config.load_settings`, into ``values``.

    Raises:
        ConfigError: It is no such text, or the key is unknown or ambiguous.
    """
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(
            f"--set {shortened(override, _LONGEST_KEY)}: expected key=value, e.g. --set train_args.comm_round=20"
        )
    value = parse_yaml(text, where=f"--set {shortened(dotted, _LONGEST_KEY)}")
    _put(values, dotted, value, shown=f"--set {shortened(dotted, _LONGEST_KEY)}")


def _put(values: dict[str, Any], dotted: str, value: Any, shown: str) -> None:
    """Put ``value`` at the place of a key, whole or without its first sections; errors begin with ``shown``."""
    path = present_name(dotted).split(".")
    if len(path) <= MAX_DEPTH and path[0] not in Settings.model_fields:
        path = _place_of(path, shown, values)
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


def _place_of(end: list[str], shown: str, values: Mapping[str, Any]) -> list[str]:
    """The whole path of the one key that ends so, or of a value within it, as in ``params.moon.mu``."""
    keys = leaves(Settings)
    names = {path[-1] for path in keys}
    of_fedml = [list(path) for path in fedml_paths() if path[-1] not in names]
    former = [old.split(".") for old in RENAMED]
    known = [path for path in (*keys, *former, *of_fedml) if path[0] != "silo_args"]  # of the silo
    places: list[list[str]] = []
    inside: list[str] = []
    for length in range(len(end), 0, -1):
        places = [path for path in known if path[-length:] == end[:length]]
        inside = end[length:]
        if places:
            break
    if len(places) == 1:
        return [*present_name(".".join(places[0])).split("."), *inside]
    if not places:
        return _unknown(end, shown, [*names, *(path[-1] for path in of_fedml)], values)
    options = " or ".join(".".join([*path, *inside]) for path in places)
    raise ConfigError(f"{shown}: stands in several sections; write {options}")


def _unknown(end: list[str], shown: str, names: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Raise the error for a key of no section, or return one that the caller reports by its first section."""
    args = values.get("dapper_args")
    args = args if isinstance(args, Mapping) else {}
    method = args.get("method", DapperArgs.model_fields["method"].default)
    if end[0] == method and len(end) > 1:
        raise ConfigError(f"{shown}: unknown key; settings of a method are in params: write params.{'.'.join(end)}")
    if len(end) > 1:
        return end
    if close := closest(end[0], names):
        raise ConfigError(f"{shown}: unknown key; did you mean `{close}`?")
    in_params = f"params.{method}.{end[0]}"
    raise ConfigError(
        f"{shown}: unknown key; one of the method's own is written {shortened(in_params, 2 * _LONGEST_KEY)};"
        " `fedml-dapper settings` lists all others"
    )


def leaves(model: type[BaseModel]) -> list[list[str]]:
    """Return the path of every key below ``model`` that is no section."""
    paths = []
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            paths += [[name, *rest] for rest in leaves(field.annotation)]
        else:
            paths.append([name])
    return paths
