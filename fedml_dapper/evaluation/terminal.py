"""Lines that fit the width of a terminal, with words and paths kept whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

_GAP = "  "


def flowed(parts: Sequence[str], width: int, indent: str = "") -> str:
    """Put ``parts`` side by side, with lines after ``indent`` as full as possible; a part is never divided."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{_GAP}{part}" if lines[-1] else f"{indent}{part}"
        if lines[-1] and cell_len(longer) > width:
            lines.append(f"{indent}{part}")
        else:
            lines[-1] = longer
    return "\n".join(lines)


def say(console: Console, text: str) -> None:
    """Print a sentence or two, broken between words."""
    for line in wrap(text, console.width, break_long_words=False, break_on_hyphens=False):
        console.print(line, soft_wrap=True, markup=False)


def say_place(console: Console, label: str, path: Path) -> None:
    """Print where something is; a path without room beside its ``label`` gets a line of its own."""
    line = f"{label}: {path}"
    console.print(line if cell_len(line) <= console.width else f"{label}:\n{path}", soft_wrap=True, markup=False)


def as_wide_as_its_title(table: Table) -> Table:
    """Return ``table`` with a width that keeps the lines of its title and caption."""
    texts = (text for text in (table.title, table.caption) if isinstance(text, str))
    table.min_width = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
    return table
