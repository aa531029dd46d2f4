"""Settings that had another name in earlier versions. Files, ledgers and messages may still use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {"dapper_args.at_home": "dapper_args.personal_layers"}
"""Dotted key of an earlier version -> the present one. Both lie in the same section."""


def present_name(key: str) -> str:
    """Return the present name of the setting with the dotted ``key``."""
    return RENAMED.get(key, key)


def with_present_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values``, section by section, with settings under their present names.

    A setting that is given by both names is left as it is, so that the check of ``values`` names the one it does not
    know.
    """
    return _renamed(values, RENAMED)


def with_former_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values``, section by section, with settings under the names that earlier versions know."""
    return _renamed(values, {new: old for old, new in RENAMED.items()})


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = dict(values)
    for before, after in names.items():
        section_name, _, key_before = before.partition(".")
        key_after = after.removeprefix(f"{section_name}.")
        section = renamed.get(section_name)
        if isinstance(section, Mapping) and key_before in section and key_after not in section:
            renamed[section_name] = {key_after if key == key_before else key: value for key, value in section.items()}
    return renamed
