"""A secure sum from message to message: a server, a silo, and all the others."""

from __future__ import annotations

from docs.pictures.canvas import Colour, Picture

_SILO, _SERVER, _OTHERS = 120, 450, 780
_BEGIN, _ROW = 92, 78
_STEPS = (
    ("ready", "two public keys, certificate, signature", "everyone's keys and plans", "each checks all signatures"),
    (
        "deal",
        "shares of its secrets, sealed for each",
        "what the others sealed for it",
        "only the silo they are for opens them",
    ),
    ("masked", "its change, under masks", "the list: whose change has come", "the server sees noise"),
    ("agree", "its signature of that list", "all signatures of it", "one list a round, noted on disk"),
    ("reveal", "shares that take the masks off", "", "only after threshold signatures"),
)
"""Name, what silos send, what the server sends, and what there is to see."""


def picture() -> Picture:
    drawn = Picture(
        "A secure sum: five steps between the server and silos",
        "Every silo sends its signed public keys, then sealed shares of its secrets, then its change under masks, then"
        " its signature of the list of silos whose change has come. Only when enough silos have signed the same list"
        " do silos tell shares, and the server takes the masks off the sum.",
        height=_BEGIN + len(_STEPS) * _ROW + 46,
    )
    end = _BEGIN + len(_STEPS) * _ROW - 6
    people: tuple[tuple[int, str, Colour], ...] = (
        (_SILO, "A silo", "orange"),
        (_SERVER, "Server", "blue"),
        (_OTHERS, "Each other silo", "orange"),
    )
    for x, name, colour in people:
        drawn.box(x - 74, 12, 148, 36, colour=colour)
        drawn.text(x, 36, name, size=15, anchor="middle", colour=colour, bold=True)
        drawn.line((x, 48), (x, end), dashed=True)
    for number, step in enumerate(_STEPS):
        _step(drawn, _BEGIN + number * _ROW, *step)
    drawn.box(_SERVER - 150, end, 300, 36, colour="blue")
    drawn.text(_SERVER, end + 23, "one sum, over those on the list", size=14, anchor="middle", bold=True)
    return drawn


def _step(drawn: Picture, y: float, name: str, up: str, down: str, seen: str) -> None:
    left, right = (_SILO + 4, _SERVER - 4), (_OTHERS - 4, _SERVER + 4)
    drawn.text(_SILO - 12, y + 5, name, size=14, anchor="end", bold=True)
    for start, end in (left, right):
        drawn.arrow((start, y), (end, y), colour="orange")
        if down:
            drawn.arrow((end, y + 32), (start, y + 32), colour="blue")
    drawn.text((_SILO + _SERVER) / 2, y - 7, up, size=13, anchor="middle")
    drawn.text((_SERVER + _OTHERS) / 2, y - 7, "likewise", size=13, anchor="middle", colour="soft")
    drawn.text((_SILO + _SERVER) / 2, y + 25, down, size=13, anchor="middle")
    drawn.text((_SERVER + _OTHERS) / 2, y + 25, seen, size=13, anchor="middle", colour="green")
