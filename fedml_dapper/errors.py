"""Errors meant for people: each message says what is wrong, where, and what to do."""

from __future__ import annotations

import re

_LONGEST_QUOTE = 200
_LONGEST_WORD = 400
_LONGEST_LINE = 10_000
"""Most letters of an error, far above those of many mistakes that are told at once."""
_SHOWN = 100
"""Letters that are shown of words above ``_LONGEST_WORD``, as errors may quote values of any length."""
USER_CODE_ERRORS = (Exception, SystemExit)
"""What users' code may raise: a script that calls ``sys.exit`` would end ours without a word."""


def shortened(text: str, most: int = _LONGEST_QUOTE) -> str:
    """Return ``text`` with dots in place of its end where it is longer than ``most`` letters."""
    return text if len(text) <= most else f"{text[:most]}..."


def complaint(program: str, text: str) -> str:
    """Return the error message by which ``program`` ends, on one line."""
    shown = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:_SHOWN]}...", text)
    return f"{program}: {shortened(on_one_line(shown), _LONGEST_LINE)}"


def on_one_line(text: str) -> str:
    """Return ``text`` with escapes such as ``\\n`` for letters that break lines or control a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def printable(text: str) -> str:
    """Return a stranger's ``text`` for logs, ledgers and tables: one short line, with ``?`` for unprintable letters."""
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
