"""The phases of a server's loop, and which may follow which, from the table in ``platform/phase.py``."""

from __future__ import annotations

from math import hypot

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.platform.phase import TRANSITIONS, Phase

_WIDTH, _HEIGHT, _APART = 150, 62, 9
_PLACES: dict[Phase, tuple[float, float, Colour, str]] = {
    Phase.WAITING: (450, 200, "ink", "between two rounds"),
    Phase.TRAINING: (450, 60, "orange", "uploads come in"),
    Phase.SUMMING: (160, 60, "purple", "silos sum in secret"),
    Phase.MEASURING: (160, 200, "green", "silos test the model"),
    Phase.PAUSED: (740, 60, "soft", "by an operator"),
    Phase.LEAVING: (450, 340, "blue", "everybody goes home"),
}
"""Middle of the box, its colour, and what goes on."""


def picture() -> Picture:
    drawn = Picture(
        "What a server's loop is at, and what may follow",
        "; ".join(
            f"{phase.value} goes on to {', '.join(sorted(one.value for one in following))}"
            for phase, following in TRANSITIONS.items()
            if following
        )
        + ".",
        height=385,
    )
    for phase, following in TRANSITIONS.items():
        for one in sorted(following, key=lambda each: each.value):
            _arrow(drawn, phase, one)
    for phase, (x, y, colour, what) in _PLACES.items():
        drawn.box(x - _WIDTH / 2, y - _HEIGHT / 2, _WIDTH, _HEIGHT, colour=colour)
        drawn.text(x, y - 4, phase.name, size=15, anchor="middle", colour=colour, bold=True)
        drawn.text(x, y + 18, what, size=12, anchor="middle")
    return drawn


def _arrow(drawn: Picture, start: Phase, end: Phase) -> None:
    """From box to box; one that has a counterpart keeps to its right."""
    (x, y, _, _), (to_x, to_y, _, _) = _PLACES[start], _PLACES[end]
    if start is Phase.TRAINING and end is Phase.LEAVING:  # around the box between them
        right = x + _WIDTH / 2 + 60
        drawn.arrow((x + _WIDTH / 2, y + 18), (right, y + 50), (right, to_y - 30), (to_x + _WIDTH / 2, to_y))
        return
    length = hypot(to_x - x, to_y - y)
    ahead_x, ahead_y = (to_x - x) / length, (to_y - y) / length
    aside = _APART if start in TRANSITIONS[end] else 0.0
    aside_x, aside_y = -aside * ahead_y, aside * ahead_x
    out, into = _edge(ahead_x, ahead_y), _edge(-ahead_x, -ahead_y)
    drawn.arrow(
        (x + ahead_x * out + aside_x, y + ahead_y * out + aside_y),
        (to_x - ahead_x * into + aside_x, to_y - ahead_y * into + aside_y),
    )


def _edge(ahead_x: float, ahead_y: float) -> float:
    """From a box's middle to its edge in this direction, and a little more."""
    sides = [half / abs(ahead) for half, ahead in ((_WIDTH / 2, ahead_x), (_HEIGHT / 2, ahead_y)) if ahead]
    return min(sides) + 3
