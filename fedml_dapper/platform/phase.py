"""Phases of a server's or an edge's event loop, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from fedml_dapper.operations.status import State


class Phase(Enum):
    """Phase of a server's or an edge's event loop; an edge knows the first three and the last alone."""

    WAITING = "waiting"
    """Processes are awaited to come online; an edge awaits the server's next order."""
    TRAINING = "training"
    """A round is open: clients are sent models, and their uploads come in."""
    MEASURING = "measuring"
    """Silos measure the round's model on their own test samples, before the round is recorded."""
    SUMMING = "summing"
    """No more uploads are taken, and silos that have trained sum securely."""
    PAUSED = "paused"
    """An operator has paused the run, between two rounds."""
    LEAVING = "leaving"
    """The run is over, and clients are told so."""


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.TRAINING, Phase.MEASURING, Phase.PAUSED, Phase.LEAVING}),
    Phase.TRAINING: frozenset({Phase.WAITING, Phase.SUMMING, Phase.LEAVING}),
    Phase.MEASURING: frozenset({Phase.WAITING, Phase.LEAVING}),
    Phase.SUMMING: frozenset({Phase.WAITING}),
    Phase.PAUSED: frozenset({Phase.TRAINING, Phase.LEAVING}),
    Phase.LEAVING: frozenset(),
}
"""Phases that may follow each phase. A round that closes is at WAITING while its record is made."""

STATE_OF: Mapping[Phase, State] = {
    Phase.WAITING: "waiting",
    Phase.TRAINING: "round",
    Phase.MEASURING: "measuring",
    Phase.SUMMING: "round",
    Phase.PAUSED: "paused",
    Phase.LEAVING: "ending",
}
"""State that an operator is shown, by phase."""


def after(phase: Phase, chosen: Phase) -> Phase:
    """Return the phase ``chosen``, and assert that it may follow ``phase`` or is the same."""
    assert chosen is phase or chosen in TRANSITIONS[phase], f"{chosen} does not follow {phase}"
    return chosen
