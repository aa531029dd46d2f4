"""Sanitising of strangers' text for logs and terminals."""

from __future__ import annotations

LONGEST = 200


def printable(text: str) -> str:
    """Return ``text`` on one line, cut to ``LONGEST`` letters, with ``?`` for those that cannot be printed."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: LONGEST + 1])
    return shown if len(text) <= LONGEST else f"{shown[:LONGEST]}..."
