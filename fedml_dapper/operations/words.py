"""A stranger's words where people read them: on one line, and short, so that nothing looks like another line."""

from __future__ import annotations

LONGEST = 200


def printable(text: str) -> str:
    """``text`` without what would break out of its line."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: LONGEST + 1])
    return shown if len(text) <= LONGEST else f"{shown[:LONGEST]}..."
