"""Rules of a section on combinations of its values, and how they are checked where some values are wrong.

A rule is a method of a section that yields a line for every mistake it finds. Each rule is checked separately, so that
all mistakes in a file are reported at once. Rules that read a wrong value are skipped, as their result would depend on
what was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from types import FunctionType, MethodType
from typing import Any, NoReturn, TypeAlias, TypeVar

from pydantic import BaseModel

Place: TypeAlias = tuple[str, ...]
"""Keys, from the outermost section on."""
RuleT = TypeVar("RuleT", bound=Callable[[Any], Iterator[str]])
_MARK = "_is_rule_of_a_section"


class BrokenRulesError(ValueError):
    """Raised with the lines that a section's rules have found."""

    def __init__(self, lines: Collection[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


def rule(method: RuleT) -> RuleT:
    """Make a method of a section one of its rules."""
    setattr(method, _MARK, True)
    return method


def broken_rules(section: BaseModel, wrong: Collection[Place] = ()) -> list[str]:
    """What the rules of ``section`` find, but for those that read a value at one of the places ``wrong`` in it."""
    seen = _Sketch(section, wrong) if wrong else section
    return [line for each in _rules(type(section)) for line in _until_a_wrong_value(each(seen))]


def _until_a_wrong_value(lines: Iterator[str]) -> Iterator[str]:
    with suppress(_ReadAWrongValueError):
        yield from lines


@cache
def _rules(kind: type[BaseModel]) -> tuple[Callable[[Any], Iterator[str]], ...]:
    named = {name: value for above in reversed(kind.__mro__) for name, value in vars(above).items()}
    return tuple(value for value in named.values() if getattr(value, _MARK, False))


class _ReadAWrongValueError(Exception):
    """Ends a rule."""


class _Sketch:
    """A section to read, some of whose values are not to be."""

    def __init__(self, section: BaseModel, wrong: Collection[Place]) -> None:
        self._section = section
        self._wrong = wrong

    def __getattr__(self, name: str) -> Any:
        below = [place[1:] for place in self._wrong if place[0] == name]
        if () in below:
            raise _ReadAWrongValueError
        of_class = vars(type(self._section)).get(name)
        if isinstance(of_class, property):
            assert of_class.fget is not None
            return of_class.fget(self)
        if isinstance(of_class, FunctionType):
            return MethodType(of_class, self)
        value = getattr(self._section, name)
        return _Sketch(value, below) if below and isinstance(value, BaseModel) else value

    def __eq__(self, other: object) -> NoReturn:
        raise _ReadAWrongValueError

    __hash__ = None  # type: ignore[assignment]  # as of anything whose equality is not known
