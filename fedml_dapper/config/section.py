"""Base class of all groups of settings, and messages on their mistakes."""

from __future__ import annotations

import difflib
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails

from fedml_dapper.config.alternatives import one_for_each_setting, parts_of
from fedml_dapper.config.fedml_meanings import fedml_paths
from fedml_dapper.config.keys import is_section, with_keys
from fedml_dapper.config.paths import expanded
from fedml_dapper.config.renamed import present_name
from fedml_dapper.config.rules import BrokenRulesError, Place, broken_rules
from fedml_dapper.errors import ConfigError, shortened

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_LONGEST_KEY = 60
_LONGEST_LIST = 1000
MAX_MISTAKES = 30
"""Most mistakes that one message describes; of more it gives the number."""
_RULES_ASIDE = "rules aside"
_WORDS_FOR_KINDS = {
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid dictionary": "a mapping",
    "Input is not a valid path for <class 'pathlib.Path'>": "Input should be the name of a file or folder",
}
"""Pydantic's words for kinds of values, and those of people who write YAML."""
_BOOLEANS = "YAML reads a bare yes, no, on or off as true or false"


class Section(BaseModel):
    """Base of all groups of settings: frozen, and closed to unknown keys. A field's docstring is its meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Add the fields' meanings to the docstring, for ``help()``."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = with_keys(cls)

    @field_validator("*", mode="before")
    @classmethod
    def _no_empty_paths(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse an empty name, which would be the working directory."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if value == "" and Path in (annotation, *get_args(annotation)):
            raise ValueError("the name of a file or folder is empty; for the working directory, give .")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_in_disguise(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse truth where a number is wanted, and bytes where a word is, which pydantic would take for these."""
        kinds = set(parts_of(cls.model_fields[str(info.field_name)].annotation))
        several = isinstance(value, list | tuple)
        for one in value if several else [value]:
            words = several and str in kinds
            if isinstance(one, bool) and kinds & {int, float} and not kinds & {bool, Any} and not words:
                raise ValueError(f"is {str(one).lower()}, where a number is needed ({_BOOLEANS})")
            if isinstance(one, bytes | bytearray) and Any not in kinds:
                raise ValueError(f"is {shown(one)}, bytes where a word is needed; decode() makes one of them")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _with_homes_and_variables(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(expanded(one) if isinstance(one, Path) else one for one in value)
        return expanded(value) if isinstance(value, Path) else value

    @model_validator(mode="before")
    @classmethod
    def _an_empty_section_is_one(cls, values: Any) -> Any:
        return with_empty_sections(cls, values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _keeps_its_rules(self, info: ValidationInfo) -> Section:
        if info.context is not _RULES_ASIDE:
            lines = broken_rules(self)
            if lines:
                raise BrokenRulesError(lines)
        return self


SectionT = TypeVar("SectionT", bound=Section)


class Judged(Generic[SectionT]):
    """Values checked as a ``model``: the valid part of them, and the mistakes."""

    def __init__(self, model: type[SectionT], values: Mapping[str, Any], prefix: str = "") -> None:
        self.mistakes: list[str] = []
        """A line per mistake; ``prefix`` is the dotted place of ``values``."""
        self.sound: SectionT | None = None
        """The section, with defaults in place of wrong values; None if something required is then missing."""
        try:
            self.sound = model.model_validate(dict(values))
        except ValidationError as error:
            found = error.errors(include_url=False)
            single = one_for_each_setting(model, [mistake for mistake in found if not _is_of_rules(mistake)])
            explained = single[:MAX_MISTAKES]  # of the others, their number
            listed: set[str] = set()
            self.mistakes += [_explain(model, mistake, prefix, listed) for mistake in explained]
            self.mistakes += [mistake["msg"] for mistake in single[MAX_MISTAKES:]]
            wrong = {place for mistake in explained for place in _places_spoilt(model, values, mistake)}
            self.sound = _without(model, values, {_place_of(model, mistake) for mistake in single})
            if self.sound is not None:
                self.mistakes += _broken_below(self.sound, wrong, prefix)
            else:
                rules = (mistake for mistake in found if _is_of_rules(mistake))
                self.mistakes += [line for mistake in rules for line in _lines_of(mistake, prefix)]


def check(model: type[SectionT], values: Mapping[str, Any], where: str, prefix: str = "") -> SectionT:
    """Return ``values`` as a ``model``; ``prefix`` is their dotted place.

    Raises:
        ConfigError: There are mistakes; the message has all of them, and begins with ``where``.
    """
    judged = Judged(model, values, prefix)
    if judged.mistakes or judged.sound is None:
        raise ConfigError(counted(judged.mistakes, where))
    return judged.sound


def counted(mistakes: Sequence[str], where: str) -> str:
    """Join all ``mistakes`` into one line, with their number where there are several."""
    if len(mistakes) == 1:
        return f"{where}: {mistakes[0]}"
    shown = "; ".join(f"({number}) {text}" for number, text in enumerate(mistakes[:MAX_MISTAKES], start=1))
    cut = f", of which these are the first {MAX_MISTAKES}" if len(mistakes) > MAX_MISTAKES else ""
    return f"{where}: {len(mistakes)} mistakes{cut}: {shown}"


def check_once(names: Sequence[str], where: str) -> None:
    """Raise :class:`ConfigError`, whose message begins with ``where``, if one of the ``names`` stands there twice."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: `{shortened(twice, _LONGEST_KEY)}` is there twice; give it once")


def with_empty_sections(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` in which an empty section, which YAML reads as null, is an empty mapping."""
    filled = dict(values)
    fields = model.model_fields
    for key, field in fields.items():
        if key in filled:
            filled[key] = _with_empty_ones(field.annotation, filled[key])
    return filled


def _with_empty_ones(kind: Any, value: Any) -> Any:
    if is_section(kind):
        return {} if value is None else with_empty_sections(kind, value) if isinstance(value, Mapping) else value
    if get_origin(kind) is dict:
        below = get_args(kind)[1]
        inside = value.items() if isinstance(value, Mapping) else ()
        return {} if value is None else {name: _with_empty_ones(below, item) for name, item in inside} or value
    return value


def did_you_mean(word: str, known: Iterable[str], understood: Iterable[str] = ()) -> str:
    """Return ``; did you mean `x`?`` when something close is known, else the list of all that is known.

    ``understood`` are further names that may be close, and are in no list.
    """
    options = sorted(set(known))
    if not options:
        return "; none is known here"
    close = closest(word, [*options, *understood])
    return f"; did you mean `{close}`?" if close else f"; known: {shortened(', '.join(options), _LONGEST_LIST)}"


def closest(word: str, options: Sequence[str]) -> str | None:
    in_small_letters = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word.lower(), in_small_letters, n=1, cutoff=0.6)
    return in_small_letters[close[0]] if close else None


def _explain(model: type[Section], mistake: ErrorDetails, prefix: str, listed: set[str]) -> str:
    """Explain a mistake in one line; ``listed`` are places whose known keys were already listed in a message."""
    *parents, last = [str(step) for step in mistake["loc"]] or [""]
    place = ".".join(step for step in (prefix, *parents) if step)
    inside = f" in {place}" if place else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown key `{last:.{_LONGEST_KEY}}`{inside}{_unknown_key(model, last, parents, place, listed)}"
        case "missing":
            return f"missing key `{last}`{inside}"
        case "value_error":
            where = ".".join(step for step in (place, last) if step)
            return f"{where}: {mistake['ctx']['error']}" if where else str(mistake["ctx"]["error"])
    return f"`{last:.{_LONGEST_KEY}}`{inside} {_misfit(mistake)}"


def _unknown_key(model: type[Section], key: str, parents: Sequence[str], place: str, listed: set[str]) -> str:
    """Say what is known of an unknown key at ``place``, in words that follow it."""
    if (present := present_name(f"{place}.{key}")) != f"{place}.{key}":
        return f": the former name of `{present}`, which is there too; keep that"
    known = _keys_at(model, parents)
    of_fedml = [name for section, name in fedml_paths() if section == place and name != key]
    home = _home_of(model, key, parents)
    if home is not None:
        return f"; it stands in {home}"
    if place in listed and closest(key, [*known, *of_fedml]) is None:
        return ""
    listed |= set() if closest(key, known) else {place}
    return did_you_mean(key, known, of_fedml)


def _misfit(mistake: ErrorDetails) -> str:
    """Say what is wrong with a value, in words that follow its place."""
    if mistake["input"] is None:
        return "is empty; give it a value, or leave it out, which means its default"
    wrong = mistake["msg"]
    for theirs, ours in _WORDS_FOR_KINDS.items():
        wrong = wrong.replace(theirs, ours)
    return f"is {shown(mistake['input'])}: {wrong[0].lower()}{wrong[1:]}{_quoting(mistake)}"


def _quoting(mistake: ErrorDetails) -> str:
    """Advice on a word that YAML takes for something else, after a semicolon; empty where it does not."""
    value = mistake["input"]
    if isinstance(value, bool) and mistake["type"] in ("string_type", "literal_error", "no_kind"):
        return f"; {_BOOLEANS}, so put the word in quotes"
    if isinstance(value, int | float | date) and mistake["type"] == "string_type":
        return "; where a word is meant, put it in quotes"
    return ""


def shown(value: object) -> str:
    """Quote a value in an error, shortened."""
    try:
        return shortened(_SHORT.repr(value))
    except ValueError:  # Python refuses to print numbers of more than 4300 digits
        return "a very large number"


def _home_of(model: type[BaseModel], key: str, parents: Sequence[str]) -> str | None:
    """Return the one other section of ``model`` that has ``key``, which was found in section ``parents``."""
    others = {name: field for name, field in model.model_fields.items() if [name] != list(parents)}
    homes = [
        name
        for name, field in others.items()
        if any(key in each.model_fields for each in _sections_in(field.annotation))
    ]
    return homes[0] if len(homes) == 1 and len(parents) == 1 else None


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for step in path:
        sections = _sections_in(model.model_fields[step].annotation) if step in model.model_fields else []
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind in (annotation, *get_args(annotation)) if is_section(kind)]


def _is_of_rules(mistake: ErrorDetails) -> bool:
    return isinstance(mistake.get("ctx", {}).get("error"), BrokenRulesError)


def _lines_of(mistake: ErrorDetails, prefix: str) -> list[str]:
    place = ".".join(str(step) for step in (prefix, *mistake["loc"]) if step != "")
    return [f"{place}: {line}" if place else line for line in mistake["ctx"]["error"].lines]


def _place_of(model: type[BaseModel], mistake: ErrorDetails) -> Place:
    """The place to remove from the values because of ``mistake``."""
    place: list[str] = []
    steps = mistake["loc"][:-1] if mistake["type"] == "missing" else mistake["loc"]
    for step in steps:
        if not isinstance(step, str):
            break
        place.append(step)
        field = model.model_fields.get(step)
        sections = [] if field is None else _sections_in(field.annotation)
        if not sections or (mistake["type"] != "extra_forbidden" and not is_section(field and field.annotation)):
            break
        model = sections[0]
    return tuple(place)


def _places_spoilt(model: type[BaseModel], values: Mapping[str, Any], mistake: ErrorDetails) -> Iterator[Place]:
    """Places that rules must not read because of ``mistake``; for an unknown key, the key it may be meant for."""
    place = _place_of(model, mistake)
    if mistake["type"] != "extra_forbidden" or len(place) < len(mistake["loc"]):
        yield place
        return
    *parents, last = place
    for step in parents:
        values = values[step]
    close = closest(last, _keys_at(model, parents))
    if close is not None and close not in values:
        yield (*parents, close)


def _without(model: type[SectionT], values: Mapping[str, Any], places: Collection[Place]) -> SectionT | None:
    """Validate ``values`` without those at ``places``, and without asking its rules; None if that fails."""
    if () in places:
        return None
    try:
        left = _taken_out(with_empty_sections(model, values), places)
        return model.model_validate(left, context=_RULES_ASIDE)
    except ValidationError:
        return None


def _taken_out(values: Mapping[str, Any], places: Collection[Place]) -> dict[str, Any]:
    below: dict[str, list[Place]] = {}
    for place in places:
        below.setdefault(place[0], []).append(place[1:])
    left = {name: value for name, value in values.items() if () not in below.get(name, ())}
    for key, inside in below.items():
        if isinstance(left.get(key), Mapping):
            left[key] = _taken_out(left[key], inside)
    return left


def _broken_below(section: BaseModel, wrong: Collection[Place], prefix: str) -> list[str]:
    """Messages of the rules of ``section`` and of all sections in it, each with its place; see :func:`broken_rules`."""
    found = []
    for name in type(section).model_fields:
        inside = [place[1:] for place in wrong if place and place[0] == name]
        place = f"{prefix}.{name}" if prefix else name
        value = getattr(section, name)
        several = enumerate(value) if isinstance(value, tuple) else ()
        below = {place: value} | {f"{place}.{index}": item for index, item in several}
        for where, item in below.items():
            if isinstance(item, BaseModel) and () not in inside:
                found += _broken_below(item, inside, where)
    lines = broken_rules(section, wrong)
    return found + [f"{prefix}: {line}" if prefix else line for line in lines]
