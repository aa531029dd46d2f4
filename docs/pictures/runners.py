"""One experiment file and the three ways in which it runs."""

from __future__ import annotations

from docs.pictures.canvas import Colour, Picture

_WAYS: tuple[tuple[str, str, Colour, str, str], ...] = (
    ("In process", "fedml-dapper run", "green", "one machine", "all cores, or one GPU"),
    ("MPI", "run/mpi.sh", "orange", "machines that you trust", "a rank a core"),
    ("Across silos", "run/silo_grpc.sh", "blue", "machines of others", "certificates, mutual TLS"),
)
"""Name, command, colour, and where it runs."""
_WIDTH, _APART, _LEFT = 264, 294, 24


def picture() -> Picture:
    drawn = Picture(
        "One experiment file, three ways to run it",
        "One YAML file runs in one process, under MPI with a server and two ranks that train, or across silos that each"
        " hold data of their own. On one machine the same seed gives the same global model in all three, bit for bit.",
        height=360,
    )
    drawn.box(320, 12, 260, 40, colour="ink")
    drawn.text(450, 38, "one YAML file, one method", size=15, anchor="middle", bold=True)
    for place, (name, command, colour, where, how) in enumerate(_WAYS):
        left = _LEFT + place * _APART
        middle = left + _WIDTH / 2
        drawn.arrow((450 + (place - 1) * 60, 54), (middle, 92), colour="soft")
        drawn.box(left, 96, _WIDTH, 178, colour=colour)
        drawn.text(middle, 122, name, size=16, anchor="middle", colour=colour, bold=True)
        drawn.text(middle, 142, command, size=13, anchor="middle")
        _processes(drawn, left, place, colour)
        drawn.lines(middle, 246, where, how, size=12, anchor="middle", colour="soft")
        drawn.arrow((middle, 276), (450 + (place - 1) * 60, 312), colour="soft")
    drawn.box(250, 314, 400, 38, colour="ink")
    drawn.text(450, 338, "one global model, bit for bit", size=15, anchor="middle", bold=True)
    return drawn


def _processes(drawn: Picture, left: float, place: int, colour: Colour) -> None:
    """One process, or a server with ranks that train, or with silos that hold data."""
    middle = left + _WIDTH / 2
    if place == 0:
        drawn.box(middle - 100, 160, 200, 58, colour=colour, fill="line")
        drawn.lines(middle, 184, "server and all clients", "one process", size=12, anchor="middle")
        return
    drawn.box(middle - 46, 154, 92, 26, colour=colour, fill="line")
    drawn.text(middle, 171, "server", size=12, anchor="middle")
    names = ("rank 1", "rank 2") if place == 1 else ("silo 1", "silo 2", "silo 3")
    for number, name in enumerate(names):
        x = middle + (number - (len(names) - 1) / 2) * 84
        drawn.line((middle, 180), (x, 196), colour=colour)
        drawn.box(x - 38, 196, 76, 28, colour=colour, fill="line")
        drawn.text(x + (6 if place == 2 else 0), 214, name, size=12, anchor="middle")
        if place == 2:
            drawn.box(x - 32, 205, 9, 9, colour="orange", fill="full", round_by=2)
