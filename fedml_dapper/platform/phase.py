"""What the loop of a server, or of an edge, is at, and what may come after it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from fedml_dapper.operations.status import State


class Phase(Enum):
    """One at a time; an edge is in the first three and the last alone."""

    WAITING = "waiting"
    """For processes to come online or, an edge, for the server's next order."""
    TRAINING = "training"
    """A round is open: clients are sent models, and their uploads come in."""
    MEASURING = "measuring"
    """Silos measure the round's model on their own test samples, before the round is recorded."""
    SUMMING = "summing"
    """No more uploads are taken, and silos sum in secret what they have trained."""
    PAUSED = "paused"
    """By an operator, between two rounds."""
    LEAVING = "leaving"
    """Everybody is sent home."""


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.TRAINING, Phase.MEASURING, Phase.PAUSED, Phase.LEAVING}),
    Phase.TRAINING: frozenset({Phase.WAITING, Phase.SUMMING, Phase.LEAVING}),
    Phase.MEASURING: frozenset({Phase.WAITING, Phase.LEAVING}),
    Phase.SUMMING: frozenset({Phase.WAITING}),
    Phase.PAUSED: frozenset({Phase.TRAINING, Phase.LEAVING}),
    Phase.LEAVING: frozenset(),
}
"""Which phase may follow which. A round that closes is at WAITING for the moment in which its record is made."""


STATE_OF: Mapping[Phase, State] = {
    Phase.WAITING: "waiting",
    Phase.TRAINING: "round",
    Phase.MEASURING: "measuring",
    Phase.SUMMING: "round",
    Phase.PAUSED: "paused",
    Phase.LEAVING: "ending",
}
"""What an operator is told."""


def after(phase: Phase, chosen: Phase) -> Phase:
    """``chosen``, which follows ``phase`` or is the same; anything else is a mistake of ours and fails."""
    assert chosen is phase or chosen in TRANSITIONS[phase], f"{chosen} does not follow {phase}"
    return chosen
