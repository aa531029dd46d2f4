"""Which pictures there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.pictures import (
    a_round,
    attacks,
    dependency_group,
    equal_cost,
    federation,
    inversion,
    levels,
    memory,
    over_time,
    partitions,
    phases,
    recording,
    recovery,
    reproduced,
    rooms,
    runners,
    secure_sum,
)
from docs.pictures.canvas import Picture

FOLDER = Path(__file__).parent

PICTURES: Mapping[str, Callable[[], Picture]] = {
    "round": a_round.picture,
    "dependency_group": dependency_group.picture,
    "recovery": recovery.picture,
    "partitions": partitions.picture,
    "federation": federation.picture,
    "rooms": rooms.picture,
    "memory": memory.picture,
    "levels": levels.picture,
    "adapters": levels.of_adapters,
    "over_time": over_time.picture,
    "reproduced": reproduced.picture,
    "equal_cost": equal_cost.picture,
    "inversion": inversion.picture,
    "secure_sum": secure_sum.picture,
    "phases": phases.picture,
    "attacks": attacks.picture,
    "runners": runners.picture,
}
"""Name of the file without its suffix, and what draws it."""


def drawn(name: str) -> str:
    """The text of a file, its name without the suffix."""
    return recording.svg() if name == RECORDING else PICTURES[name]().svg()


RECORDING = "recording"
DRAWINGS = (*PICTURES, RECORDING)
"""All names: those of pictures, and that of a terminal, which is in colours of its own."""
