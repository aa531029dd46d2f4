"""Settings that take values of several kinds, e.g. a number or a list of names, and the mistakes in them.

Pydantic reports such a mistake once for each kind, under names of its own for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import ErrorDetails

from fedml_dapper.config.keys import is_section

_OF_ANOTHER_KIND = ("_type", "_parsing", "literal_error")
"""Ends of pydantic's names for the mistake that a value is not of a kind at all."""
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
_SEVERAL = {tuple: "a list", dict: "a mapping"}


def one_for_each_setting(model: Any, mistakes: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return ``mistakes`` in values of ``model`` without those that the same value makes by another of its kinds."""
    told = []
    for (steps, kinds), group in groupby(mistakes, lambda mistake: _several_kinds(model, mistake["loc"])):
        found = list(group)
        told += found if kinds is None else _of_one_value(found, steps, kinds)
    return told


def _several_kinds(kind: Any, steps: Sequence[int | str]) -> tuple[tuple[int | str, ...], tuple[Any, ...] | None]:
    """Return the place on the way of ``steps`` whose value may be of several kinds, and these; None without one."""
    for number, step in enumerate(steps):
        below = _below(kind, step)
        kinds = tuple(one for one in _members(below) if one is not NoneType)
        if len(kinds) > 1:
            return tuple(steps[: number + 1]), kinds
        kind = kinds[0] if kinds else None
    return (), None


def _below(kind: Any, step: int | str) -> Any:
    """The kind of what lies below ``kind`` at ``step``; None where nothing is known of that."""
    if is_section(kind):
        field = kind.model_fields.get(str(step))
        return None if field is None else field.annotation
    return get_args(kind)[-1 if get_origin(kind) is dict else 0] if get_args(kind) else None


def _members(kind: Any) -> Iterator[Any]:
    """Kinds of which ``kind`` is one or the other; itself where it is no union."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _members(part)
    else:
        yield kind


def _of_one_value(
    found: Sequence[ErrorDetails], place: tuple[int | str, ...], kinds: Sequence[Any]
) -> list[ErrorDetails]:
    """Return what is to be told of the mistakes ``found`` in a value that may be of any of ``kinds``."""
    inside = len(place) + 1  # after the name of a kind
    nearest = [mistake for mistake in found if len(mistake["loc"]) > inside]  # the value is of that kind, not all in it
    nearest = nearest or [mistake for mistake in found if not mistake["type"].endswith(_OF_ANOTHER_KIND)]
    if nearest:
        return [{**mistake, "loc": (*place, *mistake["loc"][inside:])} for mistake in nearest]
    wanted = " or ".join(map(in_words, kinds))
    return [{**found[0], "loc": place, "type": "no_kind", "msg": f"Input should be {wanted}"}]


def parts_of(kind: Any) -> Iterator[Any]:
    """Yield the kinds that ``kind`` is made of, e.g. ``int`` and ``str`` of ``tuple[int, ...] | str``."""
    if not get_args(kind) or get_origin(kind) is Literal:
        yield kind
    else:
        for part in get_args(kind)[: 1 if get_origin(kind) is Annotated else None]:
            yield from parts_of(part)


def in_words(kind: Any) -> str:
    """Return a kind of value in words, e.g. ``a list of whole numbers``."""
    origin = get_origin(kind)
    if origin is Annotated:
        return in_words(get_args(kind)[0])
    if origin is Literal:
        return " or ".join(f"'{word}'" for word in get_args(kind))
    return _WORDS.get(kind) or _SEVERAL.get(origin or kind, str(kind))
