"""Values for users' own code: those alone that files of settings can hold, so that ledger and model say the same.

YAML makes dates of words and sets of lists, and programs pass what they like. JSON, in which ledgers and model files
are written, would silently turn all that into something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_MOST_BITS = 10_000
"""Most bits of a whole number: Python writes and reads no more than 4300 digits."""


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values``, arguments of a user's code or method by name.

    Raises:
        ValueError: A value is not made of numbers, words, true, false, null, lists, and mappings from words.
    """
    for name, value in values.items():
        problem = _problem(value)
        if problem:
            raise ValueError(f"`{name}` {problem}")
    return values


def _problem(value: object) -> str:
    """Return why no file can hold ``value``, and what to do, as the end of a sentence; empty where one can."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "is a number with more digits than any file can hold; let your code make it of what is shorter"
    if value is None or isinstance(value, bool | int | str | PurePath):  # of a path the file holds the words
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"is {value}; write it as a word, '{value}', of which float() makes it"
    if isinstance(value, list | tuple):
        return next((f"holds a value that {problem}" for each in value if (problem := _problem(each))), "")
    if isinstance(value, Mapping):
        return _problem_of_mapping(value)
    return (
        f"is a {type(value).__name__}; give numbers, words, lists and mappings alone (in a file, quotes make a word of"
        " a date), and let your code make the rest of them"
    )


def _problem_of_mapping(values: Mapping[Any, object]) -> str:
    for key, value in values.items():
        if not isinstance(key, str):
            return f"has the key {key!r}; keys are words, so write '{key}'"
        if problem := _problem(value):
            return f"holds `{key}`, which {problem}"
    return ""
