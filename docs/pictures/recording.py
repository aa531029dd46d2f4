"""What the quickstart prints, played line by line: drawn from ``quickstart.cast``, a recording of asciinema's format.

``python -m docs.pictures.take`` records it anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

CAST = Path(__file__).parent / "quickstart.cast"
COLUMNS = 80
_ROWS, _LINE, _SIZE = 32, 17, 13
_MARGIN, _BAR = 16, 30
_WIDTH = 2 * _MARGIN + round(COLUMNS * 0.602 * _SIZE)
_LONGEST_S, _HOLD_S = 1.0, 8.0
"""How long the picture waits for a line at most, and at its end."""
_STYLE = (
    "text{font:%dpx ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;fill:#e4e8ec}"
    "#lines{transform:translateY(%dpx)}"
    "@media (prefers-reduced-motion:no-preference){#lines{animation:play %.1fs step-end infinite}}"
    "@keyframes play{%s}"
)


@dataclass(frozen=True)
class Line:
    """A line of output, and when it was printed."""

    at_s: float
    text: str


def lines() -> tuple[str, list[Line]]:
    """The command, and what it printed."""
    head, *events = CAST.read_text(encoding="utf-8").splitlines()
    return json.loads(head)["command"], [Line(at, text.rstrip("\r\n")) for at, _, text in map(json.loads, events)]


def svg() -> str:
    """A terminal whose last rows are to be seen; it scrolls where the reader's system does not ask for calm."""
    command, printed = lines()
    shown = [Line(0.0, f"$ {command}"), *printed]
    now, before, moments = 0.0, 0.0, []
    for line in shown:
        now += min(line.at_s - before, _LONGEST_S)
        before = line.at_s
        moments.append(now)
    whole = now + _HOLD_S
    steps = "".join(
        f"{100 * moment / whole:.2f}%{{transform:translateY({_offset(number + 1)}px)}}"
        for number, moment in enumerate(moments)
    )
    height = _BAR + _ROWS * _LINE + _MARGIN
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {_WIDTH} {height}", "width": str(_WIDTH),
            "height": str(height), "role": "img", "aria-labelledby": "title desc",
        },
    )  # fmt: skip
    ElementTree.SubElement(root, "title", id="title").text = "What the quickstart prints"
    ElementTree.SubElement(root, "desc", id="desc").text = (
        "A terminal of 80 columns. It shows the clients, the domains and the levels, then a line or two for every"
        " round, then the result by domain and by level, and the path of the report."
    )
    ElementTree.SubElement(root, "style").text = _STYLE % (_SIZE, _offset(len(shown)), whole, steps)
    ElementTree.SubElement(root, "rect", width=str(_WIDTH), height=str(height), rx="8", fill="#15191d")
    for place, colour in enumerate(("#d55e00", "#e69f00", "#009e73")):
        ElementTree.SubElement(root, "circle", cx=str(_MARGIN + 6 + 18 * place), cy="16", r="5", fill=colour)
    window = ElementTree.SubElement(
        root, "svg", y=str(_BAR), width=str(_WIDTH), height=str(_ROWS * _LINE), overflow="hidden"
    )
    group = ElementTree.SubElement(window, "g", id="lines")
    for number, line in enumerate(shown):
        y = (number + 1) * _LINE - 4
        ElementTree.SubElement(group, "text", x=str(_MARGIN), y=str(y)).text = line.text
    ElementTree.indent(root, space=" ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _offset(count: int) -> int:
    """By how many pixels the first ``count`` lines are moved, so that the last of them is at the bottom."""
    return (_ROWS - count) * _LINE
