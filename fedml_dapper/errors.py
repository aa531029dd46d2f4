"""Errors meant for people: each message says what is wrong, where, and what to do."""

from __future__ import annotations

import re

_LONGEST_QUOTE = 200
_LONGEST_WORD = 400
_SHOWN = 100
"""Longer words are shown up to so many letters: a value that was quoted may be anything."""


def complaint(program: str, text: str) -> str:
    """The one line by which ``program`` ends."""
    shown = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:_SHOWN]}...", text)
    return f"{program}: {on_one_line(shown)}"


def on_one_line(text: str) -> str:
    """A stranger's words, with escapes such as ``\\n`` for what breaks lines or steers a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def printable(text: str) -> str:
    """A stranger's words where people read them, in logs, ledgers and tables: short, and without what would break out
    of their line."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_QUOTE])
    return shown if len(text) <= _LONGEST_QUOTE else f"{shown}..."


class DapperError(Exception):
    """Base of every error a user can cause and mend; the command line prints it as one line and exits with code 2."""


class ConfigError(DapperError):
    """A setting is missing, misspelt, of the wrong type, or contradicts another."""


class DataError(DapperError):
    """A data set is missing, damaged, or too small for what was asked of it."""


class ProtocolError(DapperError):
    """A message does not fit the round, the model or the plan it claims to belong to."""
