"""Base of every group of settings, and how a mistake in one is explained."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from fedml_dapper.config.keys import is_section, with_keys
from fedml_dapper.config.paths import expanded
from fedml_dapper.errors import ConfigError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_MAX_MISTAKES = 5
"""That one message tells of."""


class Section(BaseModel):
    """Base of every group of settings: frozen, and closed to unknown keys. A field's docstring is its meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_empty_paths(cls, values: Any) -> Any:
        """An empty name would be the working directory."""
        named = values if isinstance(values, Mapping) else {}
        for name, field in cls.model_fields.items():
            if named.get(name) == "" and Path in (field.annotation, *get_args(field.annotation)):
                raise ValueError(f"{name}: the name of a file or folder is empty; for the working directory, give .")
        return values

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``help()`` tell the fields' meanings."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = with_keys(cls)

    @field_validator("*", mode="after")
    @classmethod
    def _with_homes_and_variables(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(expanded(one) if isinstance(one, Path) else one for one in value)
        return expanded(value) if isinstance(value, Path) else value


SectionT = TypeVar("SectionT", bound=Section)


def check(model: type[SectionT], values: Mapping[str, Any], where: str, prefix: str = "") -> SectionT:
    """``values`` as a ``model``, or a :class:`ConfigError` for the first mistake; ``prefix`` is its dotted place."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        mistakes = error.errors(include_url=False)[:_MAX_MISTAKES]
        text = "; ".join(_explain(model, mistake, prefix) for mistake in mistakes)
        raise ConfigError(f"{where}: {text}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean `x`?`` when something close is known, else the list of what is known."""
    options = sorted(known)
    if not options:
        return "; none is known here"
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else f"; known: {', '.join(options)}"


def _explain(model: type[Section], mistake: ErrorDetails, prefix: str) -> str:
    *parents, last = [str(step) for step in mistake["loc"]] or [""]
    place = ".".join(step for step in (prefix, *parents) if step)
    inside = f" in {place}" if place else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown key `{last}`{inside}{did_you_mean(last, _keys_at(model, parents))}"
        case "missing":
            return f"missing key `{last}`{inside}"
        case "value_error":
            where = ".".join(step for step in (place, last) if step)
            return f"{where}: {mistake['ctx']['error']}" if where else str(mistake["ctx"]["error"])
    return f"`{last}`{inside} is {_shown(mistake['input'])}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def _shown(value: object) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes out no number of more than 4300 digits
        return "a very large number"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for step in path:
        annotation = model.model_fields[step].annotation
        sections = [kind for kind in (annotation, *get_args(annotation)) if is_section(kind)]
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)
