"""The rooms of the house, floor by floor; ``tests/test_pictures.py`` holds them to what may import what."""

from __future__ import annotations

from docs.pictures.canvas import WIDTH, Colour, Picture

FLOORS: tuple[tuple[Colour, tuple[tuple[str, str], ...]], ...] = (
    ("blue", (("commands/", "one file a subcommand"),)),
    ("blue", (("benches/", "grids of runs"), ("search/", "which settings next"), ("export/", "of finished runs"))),
    ("purple", (("platform/", "FedML plugs in here alone"),)),
    ("purple", (("evaluation/", "summary, figures, report"), ("device/", "a client's process, without FedML"))),
    ("purple", (("deployment/", "models as files: formats, and whether these do the same"),)),
    ("green", (("secure_grpc/", "messages between silos and server, by mutual TLS"),)),
    ("green", (("operations/", "day and night: who may take part, how it goes"),)),
    ("green", (("federation/", "a round: server, client, messages, ledger, checkpoints"),)),
    ("green", (("fleet/", "devices, and what a level needs of them"),)),
    ("orange", (("methods/", "one file a method, over parts that several share"),)),
    ("orange", (("pruning/", "ratio, plan, slim model, recovery"), ("tasks/", "loss and metrics"))),
    ("orange", (("capture/", "training steps, recorded once and replayed"),)),
    ("orange", (("models/", "backbones"), ("datasets/", "domains, dealt out to clients"))),
    ("soft", (("config/", "typed settings; registry.py: what these may name"),)),
    ("soft", (("secure_sum/", "sums of which the server sees no summand"),)),
    (
        "soft",
        (("files/", "whole or not there"), ("process/", "its end, its memory"), ("randomness/", "streams, noise")),
    ),
)
"""From the top down: rooms of a floor, each with what it is for."""
_LEFT, _TOP, _FLOOR, _WALL = 60, 108, 46, 780


def picture() -> Picture:
    drawn = Picture(
        "The rooms of the house",
        "The folders of the package as floors of a house. From the top down: "
        + "; ".join(" and ".join(name for name, _ in rooms) for _, rooms in FLOORS)
        + " over errors.py, on the ground floor. A room imports from floors below it alone.",
        height=_TOP + (len(FLOORS) + 1) * _FLOOR + 30,
    )
    drawn.line((_LEFT - 24, _TOP - 4), (WIDTH / 2, 14), (WIDTH - _LEFT + 24, _TOP - 4), (_LEFT - 24, _TOP - 4), thick=2)
    drawn.text(WIDTH / 2, 66, "cli.py, runs.py, doctor.py", size=16, anchor="middle", bold=True)
    drawn.text(WIDTH / 2, 88, "the command, its Python twin, and what is installed", size=13, anchor="middle")
    for height, (colour, rooms) in enumerate(FLOORS):
        width = _WALL / len(rooms)
        for place, (name, purpose) in enumerate(rooms):
            _room(drawn, _LEFT + place * width, _TOP + height * _FLOOR, width, colour, name, purpose)
    ground = _TOP + len(FLOORS) * _FLOOR
    _room(drawn, _LEFT, ground, _WALL, "soft", "errors.py", "what people are told when something is wrong")
    drawn.line((16, ground + _FLOOR), (WIDTH - 16, ground + _FLOOR), thick=2)
    drawn.arrow((866, _TOP + 12), (866, ground + _FLOOR - 6), thick=2)
    drawn.text(16, ground + _FLOOR + 20, "Imports only go down. A room uses what is below it alone.", size=13)
    return drawn


def _room(drawn: Picture, left: float, top: float, width: float, colour: Colour, name: str, purpose: str) -> None:
    drawn.box(left + 2, top + 2, width - 4, _FLOOR - 4, colour=colour, round_by=4)
    if width < _WALL / 2:
        drawn.text(left + 14, top + 20, name, size=15, bold=True)
        drawn.text(left + 14, top + 37, purpose, size=12)
    else:
        drawn.text(left + 14, top + 28, name, size=15, bold=True)
        drawn.text(left + 132, top + 28, purpose, size=13)
