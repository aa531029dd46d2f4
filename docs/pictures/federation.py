"""A federation across silos: a server, an edge, silos, and what travels between them."""

from __future__ import annotations

from docs.pictures.canvas import Picture

_SILO, _SILO_WIDTH = 62, 212


def picture() -> Picture:
    drawn = Picture(
        "A federation: server, edge, silos, and what travels",
        "Three silos call an edge, two silos call the server themselves, and the edge calls the server. A silo is sent"
        " the model, cut to its level where the method has it so. It sends weights, the indices of kept channels, its"
        " sample count and metrics. The edge is sent the whole model and sends one sum for its silos. Images, paths and"
        " file names stay with the silo.",
        height=470,
    )
    silos = (("Silo 1", "chalk, level 1"), ("Silo 2", "ink, level 3"), ("Silo 3", "ink, level 5"),
             ("Silo 4", "paint, level 2"), ("Silo 5", "print, level 4"))  # fmt: skip
    tops = (44, 120, 196, 300, 376)
    for (name, holds), top in zip(silos, tops, strict=True):
        _silo(drawn, top, name, holds)
    drawn.text(16, 28, "Each silo: its own images, one level", size=13, colour="soft")

    drawn.box(420, 104, 130, 94, colour="green")
    drawn.text(485, 134, "Edge", size=16, anchor="middle", colour="green", bold=True)
    drawn.lines(485, 156, "cuts downloads,", "checks and adds up", size=12, anchor="middle")
    drawn.box(724, 96, 160, 290, colour="blue")
    drawn.text(804, 128, "Server", size=16, anchor="middle", colour="blue", bold=True)
    drawn.lines(804, 160, "global model", "chooses clients", "refills, averages", "tests", size=13, anchor="middle")
    drawn.line((744, 246), (864, 246), colour="blue")
    drawn.lines(804, 272, "writes down", "ledger", "checkpoints", "audit log", "report", size=13, anchor="middle")

    for top, height in zip(tops[:3], (130, 151, 172), strict=True):
        middle = top + _SILO / 2
        _both_ways(drawn, 234, middle, 414, height)
    _both_ways(drawn, 556, 151, 718, 151)
    for top, height in zip(tops[3:], (324, 360), strict=True):
        _both_ways(drawn, 234, top + _SILO / 2, 718, height)

    drawn.text(637, 100, "down", size=12, anchor="middle", colour="blue", bold=True)
    drawn.lines(637, 117, "the whole model,", "once for all silos", size=12, anchor="middle")
    drawn.text(637, 182, "up", size=12, anchor="middle", colour="orange", bold=True)
    drawn.lines(637, 199, "one sum in float64,", "for all its silos", size=12, anchor="middle")
    drawn.text(330, 264, "down", size=12, colour="blue", bold=True)
    drawn.text(372, 264, "the model, or the part of the silo's level", size=12)
    drawn.text(330, 283, "up", size=12, colour="orange", bold=True)
    drawn.text(372, 283, "weights, kept indices, sample count, metrics", size=12)
    drawn.text(330, 432, "All lines: gRPC with mutual TLS, a certificate each. Silos only dial out.", size=12)
    drawn.text(330, 452, "Stays with the silo: images, paths, file names.", size=12, bold=True)
    return drawn


def _silo(drawn: Picture, top: float, name: str, holds: str) -> None:
    drawn.box(16, top, _SILO_WIDTH, _SILO, colour="orange")
    for row in range(2):
        for column in range(2):
            drawn.box(28 + column * 20, top + 12 + row * 20, 17, 17, colour="orange", fill="full", round_by=2)
    drawn.text(82, top + 27, name, size=15, bold=True)
    drawn.text(82, top + 47, holds, size=13)


def _both_ways(drawn: Picture, left: float, left_y: float, right: float, right_y: float) -> None:
    """Down, from right to left, above; up, from left to right, below."""
    drawn.arrow((right, right_y - 5), (left, left_y - 5), colour="blue")
    drawn.arrow((left, left_y + 5), (right, right_y + 5), colour="orange")
